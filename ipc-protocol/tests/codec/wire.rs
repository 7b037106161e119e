//! What the messages are as bincode: `wire.txt` beside this file, for one [`VERSION`]. Bincode writes neither names nor types, so two
//! builds of one version have to agree on each field's place and type, and on each variant's number.

use std::{collections::BTreeSet, fmt::Write as _, path::Path};

use ipc_protocol::{
    Event, KillOptions,
    codec::encode,
    message::{FromForkServer, FromProxy, ToForkServer, ToProxy, VERSION},
    terminal::{FromTerminal, ToTerminal},
};
use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::TestRunner,
};
use serde::{
    Serialize, Serializer,
    ser::{
        SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple, SerializeTupleStruct,
        SerializeTupleVariant,
    },
};

use crate::values;

/// Messages of each kind that are looked at, and events: so many that each field of each variant is there.
const MESSAGES: usize = 1000;
const EVENTS: usize = 6000;

/// Notes what bincode would write. What a value is called where it stands is the result.
struct Tracer<'a>(&'a mut BTreeSet<String>);

/// The parts of something that has some.
struct Parts<'a> {
    lines: &'a mut BTreeSet<String>,
    /// What it is called where it stands.
    name: String,
    /// What its fields are called.
    of: String,
    next: usize,
    kinds: Vec<String>,
}

type Error = std::fmt::Error;
type Kind = Result<String, Error>;

fn trace(lines: &mut BTreeSet<String>, value: &(impl Serialize + ?Sized)) -> Kind {
    value.serialize(Tracer(lines))
}

impl<'a> Tracer<'a> {
    fn parts(self, name: &str, of: String) -> Parts<'a> {
        Parts { lines: self.0, name: name.to_owned(), of, next: 0, kinds: Vec::new() }
    }

    fn variant(self, name: &str, index: u32, variant: &str) -> Parts<'a> {
        let of = format!("{name} {index:02} {variant}");
        self.0.insert(of.clone());
        self.parts(name, of)
    }
}

impl Parts<'_> {
    fn field(&mut self, name: &str, value: &(impl Serialize + ?Sized)) -> Result<(), Error> {
        let kind = trace(self.lines, value)?;
        self.lines.insert(format!("{} .{:02} {name}: {kind}", self.of, self.next));
        self.next += 1;
        Ok(())
    }

    fn part(&mut self, value: &(impl Serialize + ?Sized)) -> Result<(), Error> {
        let kind = trace(self.lines, value)?;
        if !self.kinds.contains(&kind) {
            self.kinds.push(kind);
        }
        Ok(())
    }
}

macro_rules! plain {
    ($($method:ident $type:ty;)*) => {
        $(fn $method(self, _: $type) -> Kind {
            Ok(stringify!($type).into())
        })*
    };
}

impl<'a> Serializer for Tracer<'a> {
    type Ok = String;
    type Error = Error;
    type SerializeSeq = Parts<'a>;
    type SerializeTuple = Parts<'a>;
    type SerializeTupleStruct = Parts<'a>;
    type SerializeTupleVariant = Parts<'a>;
    type SerializeMap = Parts<'a>;
    type SerializeStruct = Parts<'a>;
    type SerializeStructVariant = Parts<'a>;

    plain! {
        serialize_bool bool; serialize_i8 i8; serialize_i16 i16; serialize_i32 i32; serialize_i64 i64;
        serialize_u8 u8; serialize_u16 u16; serialize_u32 u32; serialize_u64 u64;
        serialize_f32 f32; serialize_f64 f64; serialize_char char; serialize_str &str; serialize_bytes &[u8];
        serialize_unit_struct &'static str;
    }

    fn serialize_none(self) -> Kind {
        Ok("option".into())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Kind {
        Ok(format!("option of {}", trace(self.0, value)?))
    }

    fn serialize_unit(self) -> Kind {
        Ok("()".into())
    }

    fn serialize_unit_variant(self, name: &'static str, index: u32, variant: &'static str) -> Kind {
        Ok(self.variant(name, index, variant).name)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, name: &'static str, value: &T) -> Kind {
        let mut parts = self.parts(name, name.to_owned());
        parts.field("0", value)?;
        Ok(parts.name)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Kind {
        let mut parts = self.variant(name, index, variant);
        parts.field("0", value)?;
        Ok(parts.name)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Parts<'a>, Error> {
        Ok(self.parts("list", String::new()))
    }

    fn serialize_tuple(self, len: usize) -> Result<Parts<'a>, Error> {
        Ok(self.parts(&format!("{len}-tuple"), String::new()))
    }

    fn serialize_tuple_struct(self, name: &'static str, _: usize) -> Result<Parts<'a>, Error> {
        Ok(self.parts(name, name.to_owned()))
    }

    fn serialize_tuple_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Parts<'a>, Error> {
        Ok(self.variant(name, index, variant))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Parts<'a>, Error> {
        Ok(self.parts("map", String::new()))
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Parts<'a>, Error> {
        Ok(self.parts(name, name.to_owned()))
    }

    fn serialize_struct_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Parts<'a>, Error> {
        Ok(self.variant(name, index, variant))
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// What has fields by names, and what has them by numbers.
macro_rules! fields {
    ($($trait:ident $method:ident($($key:ident)?);)*) => {
        $(impl $trait for Parts<'_> {
            type Ok = String;
            type Error = Error;

            fn $method<T: Serialize + ?Sized>(&mut self, $($key: &'static str,)? value: &T) -> Result<(), Error> {
                let name = self.next.to_string();
                $(let name = { drop(name); $key };)?
                self.field(&name, value)
            }

            fn end(self) -> Kind {
                Ok(self.name)
            }
        })*
    };
}

fields! {
    SerializeTupleStruct serialize_field();
    SerializeTupleVariant serialize_field();
    SerializeStruct serialize_field(key);
    SerializeStructVariant serialize_field(key);
}

macro_rules! elements {
    ($($trait:ident $($method:ident)*;)*) => {
        $(impl $trait for Parts<'_> {
            type Ok = String;
            type Error = Error;

            $(fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
                self.part(value)
            })*

            fn end(self) -> Kind {
                Ok(if self.kinds.is_empty() { self.name } else { format!("{} of {}", self.name, self.kinds.join(", ")) })
            }
        })*
    };
}

elements! {
    SerializeSeq serialize_element;
    SerializeTuple serialize_element;
    SerializeMap serialize_key serialize_value;
}

fn trace_all<T: Serialize>(lines: &mut BTreeSet<String>, strategy: &impl Strategy<Value = T>, many: usize) {
    let mut runner = TestRunner::deterministic();
    for _ in 0..many {
        let message = strategy.new_tree(&mut runner).expect("a message").current();
        trace(lines, &message).expect("it has a shape");
    }
}

/// How numbers, lengths and variants are written: a frame of a message that has all of them.
fn bytes() -> String {
    let session = "s-1".parse().expect("a valid id");
    let message = ToForkServer::Kill { session, options: KillOptions::NOW };
    let mut frame = Vec::new();
    encode(&message, &mut frame).expect("short");
    frame.iter().fold("bytes of a message:".to_owned(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, " {byte:02x}");
        text
    })
}

#[test]
fn a_message_that_has_changed_is_of_another_version() {
    let mut now = BTreeSet::from([bytes()]);
    trace_all::<ToProxy>(&mut now, &values::to_proxy(), MESSAGES);
    trace_all::<FromProxy>(&mut now, &values::from_proxy(), MESSAGES);
    trace_all::<ToForkServer>(&mut now, &values::to_fork_server(), MESSAGES);
    trace_all::<FromForkServer>(&mut now, &values::from_fork_server(), MESSAGES);
    trace_all::<ToTerminal>(&mut now, &values::to_terminal(), MESSAGES);
    trace_all::<FromTerminal>(&mut now, &values::from_terminal(), MESSAGES);
    // Most messages are none.
    trace_all::<Event>(&mut now, &values::event(), EVENTS);
    let (version, kept) = include_str!("wire.txt").split_once('\n').unwrap_or_default();
    let kept: BTreeSet<String> = kept.lines().map(str::to_owned).collect();
    let mut wrong = String::new();
    for (sign, line) in
        kept.difference(&now).map(|line| ('-', line)).chain(now.difference(&kept).map(|line| ('+', line)))
    {
        wrong += &format!("{sign} {line}\n");
    }
    let is_of_this_version = version == format!("version {VERSION}");
    if wrong.is_empty() && is_of_this_version {
        return;
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wire.txt");
    let lines = now.into_iter().map(|line| line + "\n").collect::<String>();
    std::fs::write(&path, format!("version {VERSION}\n{lines}")).expect("written");
    let todo = if is_of_this_version {
        "What crosses the wire has changed. Raise VERSION (src/message.rs), or a host meets sessions of its own version whose messages it \
         misreads; and let what the release before says be understood still (src/reattach.rs, tests/golden), or its sessions cannot be \
         taken over."
    } else {
        "VERSION was raised."
    };
    panic!("\n{wrong}{todo}\nThen put {} in the place of tests/codec/wire.txt.", path.display());
}
