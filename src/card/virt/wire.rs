//! A wire between virtual cards: the streams' threads meet, and one gives the bytes to the other.

use std::any::Any;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::card::{Wire, WireEnd};

/// One end of a wire.
pub(super) struct End {
    line: Arc<Line>,
    sends: bool,
}

#[derive(Default)]
struct Line {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// What was sent and not yet received.
    bytes: Option<Vec<u8>>,
    /// Whether it was cut, and whether the sending end did it.
    cut: Option<bool>,
}

/// A wire's sending and receiving end.
pub(super) fn wire() -> [Wire; 2] {
    let line = Arc::new(Line::default());
    [true, false].map(|sends| Wire::new(Arc::new(End { line: Arc::clone(&line), sends })))
}

/// The end of a virtual card's wire that sends or receives, as it is `wanted`.
pub(super) fn end(wire: &Wire, wanted: bool) -> Result<&End, String> {
    let end = wire.end().as_any().downcast_ref::<End>().ok_or("the wire leads to no virtual card")?;
    if end.sends == wanted { Ok(end) } else { Err("it is the wire's other end".to_owned()) }
}

impl End {
    /// Gives the bytes away; returns when the other end has them.
    pub(super) fn send(&self, bytes: &[u8]) -> Result<(), String> {
        self.line.when(|state| state.bytes.is_none())?.bytes = Some(bytes.to_vec());
        self.line.changed.notify_all();
        self.line.when(|state| state.bytes.is_none()).map(drop)
    }

    /// Waits for bytes and takes them.
    pub(super) fn receive(&self, to: &mut [u8]) -> Result<(), String> {
        let bytes = self.line.when(|state| state.bytes.is_some())?.bytes.take().unwrap_or_default();
        self.line.changed.notify_all();
        if bytes.len() != to.len() {
            return Err(format!("{} bytes were sent, {} are received", bytes.len(), to.len()));
        }
        to.copy_from_slice(&bytes);
        Ok(())
    }
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the state is as wanted, or the wire is cut.
    fn when(&self, wanted: impl Fn(&State) -> bool) -> Result<MutexGuard<'_, State>, String> {
        let waits = |state: &mut State| state.cut.is_none() && !wanted(state);
        let state = self.changed.wait_while(self.lock(), waits).unwrap_or_else(PoisonError::into_inner);
        if state.cut.is_some() { Err("the wire was cut".to_owned()) } else { Ok(state) }
    }
}

impl WireEnd for End {
    fn cut(&self) {
        self.line.lock().cut.get_or_insert(self.sends);
        self.line.changed.notify_all();
    }

    fn is_cut(&self) -> bool {
        self.line.lock().cut.is_some()
    }

    fn cut_from_afar(&self) -> bool {
        self.line.lock().cut.is_some_and(|by_sender| by_sender != self.sends)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_arrive_in_order_and_a_cut_wakes_both_ends() {
        let [from, to] = wire();
        let sender = std::thread::spawn(move || {
            let from = end(&from, true)?;
            from.send(&[1, 2])?;
            from.send(&[3, 4])?;
            from.send(&[5, 6])
        });
        let (mut all, receiver) = ([0; 4], end(&to, false).unwrap());
        all.chunks_mut(2).for_each(|part| receiver.receive(part).unwrap());
        assert_eq!(all, [1, 2, 3, 4]);
        assert!(end(&to, true).is_err(), "the receiving end sends");
        receiver.cut();
        assert_eq!(sender.join().unwrap(), Err("the wire was cut".to_owned()));
        assert!(receiver.receive(&mut [0; 2]).is_err() && receiver.is_cut() && !receiver.cut_from_afar());
    }
}
