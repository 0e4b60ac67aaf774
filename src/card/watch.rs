//! Watching what host threads do: their accesses to host buffers and the messages between them.
//!
//! A ledger proves that everything is ordered. It sees a card's commands because it wraps the card; it sees the host through
//! a [`Watcher`]. Without a ledger all of this does nothing.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
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
pub struct Baton<T> {
    watcher: Watcher,
    send: Sender<(T, Stamp)>,
}

/// The receiving end; receiving joins the sender's clock.
pub struct BatonReceiver<T> {
    watcher: Watcher,
    receive: Receiver<(T, Stamp)>,
}

/// A channel between host threads whose messages carry clocks.
pub fn baton<T>(watcher: &Watcher) -> (Baton<T>, BatonReceiver<T>) {
    let (send, receive) = mpsc::channel();
    (Baton { watcher: watcher.clone(), send }, BatonReceiver { watcher: watcher.clone(), receive })
}

impl<T> Clone for Baton<T> {
    fn clone(&self) -> Self {
        Self { watcher: self.watcher.clone(), send: self.send.clone() }
    }
}

impl<T> Baton<T> {
    /// Sends; gives the message back when nobody receives any more.
    ///
    /// # Errors
    /// The message itself.
    pub fn send(&self, message: T) -> Result<(), T> {
        self.send.send((message, self.watcher.stamp())).map_err(|back| back.0.0)
    }
}

impl<T> BatonReceiver<T> {
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
