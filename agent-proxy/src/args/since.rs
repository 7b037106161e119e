//! Moment of `--since`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Seconds from 1970 to the year 10000, which cannot be written.
const END_OF_TIMES: u64 = 253_402_300_800;

/// Parses a time ago (`10m`) or a moment: a date, a date and a time, or RFC 3339. Without a zone it is UTC, as listings print it.
pub(super) fn parse(text: &str) -> Result<SystemTime, String> {
    if let Ok(ago) = humantime::parse_duration(text) {
        // Nothing was before 1970.
        return Ok(SystemTime::now().checked_sub(ago).unwrap_or(UNIX_EPOCH).max(UNIX_EPOCH));
    }
    let writable = UNIX_EPOCH..UNIX_EPOCH + Duration::from_secs(END_OF_TIMES);
    moment(text.trim()).filter(|moment| writable.contains(moment)).ok_or_else(|| {
        format!("{text:?} is neither a time ago, as in 10m, nor a moment, as in 2026-01-31, '2026-01-31 14:00' or 2026-01-31T14:00:00Z")
    })
}

fn moment(text: &str) -> Option<SystemTime> {
    let Some((date, time)) = text.split_once(['T', 't', ' ']) else { return utc(text, "00:00:00") };
    let (time, zone) = match time.find(['Z', 'z', '+', '-']) {
        Some(at) => time.split_at(at),
        None => (time, "Z"),
    };
    let seconds = if time.len() == "14:00".len() { ":00" } else { "" };
    let there = utc(date, &format!("{time}{seconds}"))?;
    match zone.split_at_checked(1)? {
        ("Z" | "z", "") => Some(there),
        // East of Greenwich clocks are ahead.
        ("+", offset) => there.checked_sub(zone_offset(offset)?),
        ("-", offset) => there.checked_add(zone_offset(offset)?),
        _ => None,
    }
}

fn utc(date: &str, time: &str) -> Option<SystemTime> {
    humantime::parse_rfc3339(&format!("{date}T{time}Z")).ok()
}

/// Parses the offset of a zone: `01:00` or `0100`.
fn zone_offset(text: &str) -> Option<Duration> {
    let digits = text.replacen(':', "", 1);
    let (hours, minutes) = digits.split_at_checked(2).filter(|_| digits.len() == 4 && digits.is_ascii())?;
    let number =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten();
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    (hours < 24 && minutes < 60).then(|| Duration::from_secs((hours * 60 + minutes) * 60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_as_people_write_them() {
        let noon = humantime::parse_rfc3339("2026-11-28T12:00:00Z").expect("a moment");
        for text in [
            "2026-11-28T12:00:00Z",
            "2026-11-28 12:00",
            "2026-11-28T12:00",
            "2026-11-28 12:00:00",
            "2026-11-28 12:00:00.000Z",
            "2026-11-28t12:00:00z",
            "2026-11-28T13:30:00+01:30",
            "2026-11-28T04:00-0800",
            " 2026-11-28 12:00 ",
        ] {
            assert_eq!(parse(text), Ok(noon), "{text}");
        }
        assert_eq!(parse("2026-11-28"), Ok(noon - Duration::from_secs(12 * 3600)));
        let ago = parse("1h 30m").expect("a time ago").elapsed().expect("it is past");
        assert!(ago >= Duration::from_secs(5400) && ago < Duration::from_secs(5460), "{ago:?}");
        for ago in ["60y", "10000y"] {
            assert_eq!(parse(ago), Ok(UNIX_EPOCH), "{ago}");
        }
        for text in [
            "noon",
            "",
            "2026-11",
            "2026-13-01",
            "2026-11-28T",
            "2026-11-28 12",
            "2026-11-28 12:00+",
            "12:00",
            "2026-11-28 12:00+1:00",
            "2026-11-28 12:00+24:00",
            "2026-11-28 12:00 UTC",
            "1970-01-01T00:00+01:00",
            "9999-12-31T23:30-01:00",
        ] {
            assert!(parse(text).is_err_and(|why| why.contains("2026-01-31 14:00")), "{text}");
        }
    }
}
