//! Watching what host threads do: their accesses to host buffers and the messages between them.
//!
//! A ledger proves that everything is ordered. It sees a card's commands because it wraps the card; it sees the host
//! through a [`Watcher`]. Without a ledger all of this does nothing.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::time::Duration;

use super::{CardError, HostSpan};

/// What a host thread does with bytes of a host buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostAccess {
    /// It reads them.
    Read,
    /// It writes them.
    Write,
}

/// A host thread's clock at some moment, carried by a message.
#[derive(Clone, Debug, Default)]
pub struct Stamp(pub Vec<(u64, u64)>);

/// Told of what the calling host thread does.
pub trait Watch: Send + Sync {
    /// The calling thread is about to touch the bytes.
    ///
    /// # Errors
    /// [`CardError::Unordered`] when the access is not ordered after one it conflicts with.
    fn host_access(&self, span: &HostSpan, access: HostAccess) -> Result<(), CardError>;

    /// The calling thread's clock, for a message it sends.
    fn stamp(&self) -> Stamp;

    /// The calling thread received a message with this stamp.
    fn join(&self, stamp: &Stamp);
}

/// The watch of a rig, if it has one.
#[derive(Clone, Default)]
pub struct Watcher(Option<Arc<dyn Watch>>);

impl Watcher {
    /// Reports to `watch`.
    pub fn new(watch: Arc<dyn Watch>) -> Self {
        Self(Some(watch))
    }

    /// See [`Watch::host_access`].
    ///
    /// # Errors
    /// What the watch says.
    pub fn host_access(&self, span: &HostSpan, access: HostAccess) -> Result<(), CardError> {
        self.0.as_ref().map_or(Ok(()), |watch| watch.host_access(span, access))
    }

    /// See [`Watch::stamp`].
    pub fn stamp(&self) -> Stamp {
        self.0.as_ref().map_or_else(Stamp::default, |watch| watch.stamp())
    }

    /// See [`Watch::join`].
    pub fn join(&self, stamp: &Stamp) {
        if let Some(watch) = &self.0 {
            watch.join(stamp);
        }
    }
}

/// The sending end of a channel whose messages carry the sender's clock.
pub struct ClockedSender<T> {
    watcher: Watcher,
    send: Queue<T>,
}

/// Whether messages may pile up.
enum Queue<T> {
    Free(Sender<(T, Stamp)>),
    Bounded(SyncSender<(T, Stamp)>),
}

/// The receiving end; receiving joins the sender's clock.
pub struct ClockedReceiver<T> {
    watcher: Watcher,
    receive: Receiver<(T, Stamp)>,
}

/// A channel between host threads whose messages carry clocks.
pub fn clocked_channel<T>(watcher: &Watcher) -> (ClockedSender<T>, ClockedReceiver<T>) {
    let (send, receive) = mpsc::channel();
    ends(watcher, Queue::Free(send), receive)
}

/// As [`clocked_channel`], for messages that are too large to pile up: while `capacity` of them wait, sending waits.
pub fn bounded_clocked_channel<T>(watcher: &Watcher, capacity: usize) -> (ClockedSender<T>, ClockedReceiver<T>) {
    let (send, receive) = mpsc::sync_channel(capacity);
    ends(watcher, Queue::Bounded(send), receive)
}

fn ends<T>(watcher: &Watcher, send: Queue<T>, receive: Receiver<(T, Stamp)>) -> (ClockedSender<T>, ClockedReceiver<T>) {
    (ClockedSender { watcher: watcher.clone(), send }, ClockedReceiver { watcher: watcher.clone(), receive })
}

impl<T> Clone for ClockedSender<T> {
    fn clone(&self) -> Self {
        let send = match &self.send {
            Queue::Free(send) => Queue::Free(send.clone()),
            Queue::Bounded(send) => Queue::Bounded(send.clone()),
        };
        Self { watcher: self.watcher.clone(), send }
    }
}

impl<T> ClockedSender<T> {
    /// Sends, in a bounded channel when there is room; gives the message back when nobody receives any more, also one
    /// that waits for room.
    ///
    /// # Errors
    /// The message itself.
    pub fn send(&self, message: T) -> Result<(), T> {
        let stamped = (message, self.watcher.stamp());
        match &self.send {
            Queue::Free(send) => send.send(stamped),
            Queue::Bounded(send) => send.send(stamped),
        }
        .map_err(|back| back.0.0)
    }
}

impl<T> ClockedReceiver<T> {
    /// Waits for a message; `None` when all senders are gone.
    pub fn receive(&self) -> Option<T> {
        let (message, stamp) = self.receive.recv().ok()?;
        self.watcher.join(&stamp);
        Some(message)
    }

    /// Waits at most `limit`; `Ok(None)` when the time is over.
    ///
    /// # Errors
    /// [`RecvTimeoutError::Disconnected`] when all senders are gone.
    pub fn receive_within(&self, limit: Duration) -> Result<Option<T>, RecvTimeoutError> {
        match self.receive.recv_timeout(limit) {
            Ok((message, stamp)) => {
                self.watcher.join(&stamp);
                Ok(Some(message))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(gone) => Err(gone),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_channel_makes_its_sender_wait_and_a_gone_reader_wakes_it() {
        let (send, receive) = bounded_clocked_channel(&Watcher::default(), 1);
        assert_eq!(send.send(1), Ok(()));
        let (sent, third_is_sent) = mpsc::channel();
        let second = std::thread::spawn(move || {
            let two = (send.send(2), send.send(3));
            sent.send(()).unwrap();
            (two, send.send(4))
        });
        assert_eq!(receive.receive(), Some(1));
        assert_eq!(receive.receive(), Some(2));
        third_is_sent.recv().unwrap();
        // No time makes it end; a short one lets it come to its wait on most runs.
        std::thread::sleep(Duration::from_millis(20));
        assert!(!second.is_finished(), "the fourth message found no room, and did not wait");
        drop(receive);
        assert_eq!(second.join().ok(), Some(((Ok(()), Ok(())), Err(4))));
    }
}
