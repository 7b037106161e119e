//! Addresses that an allowed name may lead to. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns whether a name of a rule may lead to an address. Never to this machine, to a neighbour by its link, or to where clouds keep
/// what they tell their machines: whoever answers for a name decides on its addresses. To a private network a name alone may lead, and
/// none of a wildcard.
pub(super) fn may_lead_to(address: IpAddr, is_exact: bool) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => may_lead_to_v4(address, is_exact),
        IpAddr::V6(address) => may_lead_to_v6(address, is_exact),
    }
}

fn may_lead_to_v4(address: Ipv4Addr, is_exact: bool) -> bool {
    let [a, b, ..] = address.octets();
    let is_shared = a == 100 && (64..128).contains(&b);
    let is_ours = a == 198 && (18..20).contains(&b);
    let is_special = address.is_loopback()
        || address.is_unspecified()
        || address.is_link_local()
        || address.is_multicast()
        || a == 0
        || a >= 240
        || is_shared
        || is_ours
        || address == Ipv4Addr::new(168, 63, 129, 16);
    !is_special && (is_exact || !address.is_private())
}

fn may_lead_to_v6(address: Ipv6Addr, is_exact: bool) -> bool {
    let segments = address.segments();
    // Addresses of version 4 in other clothes.
    let embedded = match segments {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0, 0, 0, 0, 0, 0, high, low] => Some([high, low]),
        [0x2002, high, low, ..] => Some([high, low]),
        _ => None,
    };
    if let Some([high, low]) = embedded {
        return may_lead_to_v4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)), is_exact);
    }
    let is_special = address.is_loopback()
        || address.is_unspecified()
        || address.is_multicast()
        || address.is_unicast_link_local()
        || segments[..2] == [0xfd00, 0x0ec2]
        || segments[0] & 0xffc0 == 0xfec0;
    !is_special && (is_exact || !address.is_unique_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_to_no_place_of_the_machine_s_own() {
        for address in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "169.254.169.254",
            "100.100.100.200",
            "168.63.129.16",
            "224.0.0.1",
            "255.255.255.255",
            "198.18.0.2",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "2002:7f00:1::",
            "fe80::1",
            "fd00:ec2::254",
            "ff02::1",
        ] {
            let address = address.parse().expect("an address");
            assert!(!may_lead_to(address, true) && !may_lead_to(address, false), "{address}");
        }
        for (address, exact, wildcard) in [
            ("93.184.216.34", true, true),
            ("2606:4700::1111", true, true),
            ("10.1.2.3", true, false),
            ("192.168.1.1", true, false),
            ("fd12::1", true, false),
        ] {
            let address = address.parse().expect("an address");
            assert_eq!((may_lead_to(address, true), may_lead_to(address, false)), (exact, wildcard), "{address}");
        }
    }
}
