//! From card to card: copies of another card's memory, and wires.

use std::time::Duration;

use aqueduct::card::command::{CopyAcross, WireReceive, WireSend};
use aqueduct::card::{Card, Command, Region, Stream};

use super::{Bench, WHY, copy};

#[test]
fn another_cards_memory_is_read_once_it_is_in_reach_and_never_written() {
    let (bench, other) = (Bench::new(), Bench::new());
    let (far, near) = (other.floats(&[1.0, 2.0]), bench.region(8, "near"));
    other.card.drain(Stream::Compute, WHY).unwrap();
    let across = |from: &Region, to: &Region| Command::CopyAcross(CopyAcross { from: from.whole(), to: to.whole() });
    assert!(bench.refusal(across(&far, &near)).contains("not in reach"));
    bench.card.reach(&other.card.neighbour()).unwrap();
    bench.card.submit(Stream::Compute, across(&far, &near)).unwrap();
    assert_eq!(bench.read(&near), [1.0, 2.0]);
    for wrong in [copy(&far, &near), across(&near, &far), across(&near, &near), across(&far, &bench.region(4, "short"))]
    {
        bench.refusal(wrong);
    }
}

#[test]
fn a_wire_carries_what_is_sent_and_a_failed_card_cuts_it() {
    let (bench, other) = (Bench::new(), Bench::new());
    let (x, y) = (bench.floats(&[3.0, 4.0]), other.region(8, "y"));
    bench.card.drain(Stream::Compute, WHY).unwrap();
    let [out, back] = bench.card.join(&other.card.neighbour(), Duration::ZERO).unwrap();
    let send = || Command::WireSend(WireSend { from: x.whole(), over: out.clone() });
    let receive = || Command::WireReceive(WireReceive { to: y.whole(), over: back.clone() });
    assert!(bench.refusal(Command::WireSend(WireSend { from: x.whole(), over: back.clone() })).contains("other end"));
    bench.card.submit(Stream::HandOff, send()).unwrap();
    let sent = bench.card.record(Stream::HandOff).unwrap();
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(bench.card.finished(&sent), Ok(false), "nobody has received yet");
    other.card.submit(Stream::HandOff, receive()).unwrap();
    bench.card.sync(&sent, WHY).unwrap();
    other.card.drain(Stream::HandOff, WHY).unwrap();
    assert_eq!(other.read(&y), [3.0, 4.0]);
    // The sender fails before its half runs: the receiver does not wait for it.
    other.card.submit(Stream::HandOff, receive()).unwrap();
    bench.faults.fail_copy(1);
    bench.card.submit(Stream::HandOff, copy(&x, &x)).unwrap_err();
    bench.card.submit(Stream::HandOff, copy(&x, &bench.region(8, "z"))).unwrap();
    let _ = bench.card.submit(Stream::HandOff, send());
    if !out.end().is_cut() {
        // The failure came before the command was taken.
        assert!(bench.card.drain(Stream::HandOff, WHY).is_err());
        out.end().cut();
    }
    let error = other.card.drain(Stream::HandOff, WHY).unwrap_err().to_string();
    assert!(error.contains("`receive`") && error.contains("cut"), "{error}");
    assert!(back.end().cut_from_afar() && !out.end().cut_from_afar());
}
