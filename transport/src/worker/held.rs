//! Messages of the handshake that name queue pairs of a process that has not answered for them yet: they wait, with what
//! follows them on their streams, and hold up nobody else.

use std::time::Duration;

use qpair_verbs::{Context, Inquiry, QpAddress};

use super::Worker;
use crate::cm::{Message, Notice, RailNews, SocketId};

/// Such messages, those that came first in front.
#[derive(Debug, Default)]
pub(super) struct Held(Vec<Waiting>);

#[derive(Debug)]
struct Waiting {
    socket: SocketId,
    message: Message,
    inquiry: Inquiry,
    /// What the stream had to say after it.
    behind: Vec<Notice>,
}

impl Held {
    /// The notice, unless it is to wait behind a message. When a stream's time is over its message is dropped.
    pub(super) fn pass(&mut self, notice: Notice) -> Option<Notice> {
        let socket = notice.socket();
        let Some(place) = self.0.iter().position(|waiting| waiting.socket == socket) else { return Some(notice) };
        if let Notice::TimedOut { .. } = notice {
            self.0.remove(place);
            return Some(notice);
        }
        self.0[place].behind.push(notice);
        None
    }

    fn take(&mut self) -> Option<Waiting> {
        let place = self.0.iter().position(|waiting| waiting.inquiry.is_over())?;
        Some(self.0.remove(place))
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn has(&self, socket: SocketId) -> bool {
        self.0.iter().any(|waiting| waiting.socket == socket)
    }
}

impl Worker {
    /// Deals with a message, once the device of each queue pair that it names has answered.
    pub(super) fn hear(&mut self, socket: SocketId, message: Message) {
        let inquiry = self.inquire(&message);
        if inquiry.is_over() {
            return self.message(socket, message, inquiry);
        }
        let now = self.now();
        self.sockets.hold(socket, now);
        self.held.0.push(Waiting { socket, message, inquiry, behind: Vec::new() });
    }

    /// Deals with messages that have waited long enough.
    pub(super) fn look_at_held(&mut self, now: Duration) {
        while let Some(Waiting { socket, message, inquiry, behind }) = self.held.take() {
            self.message(socket, message, inquiry);
            behind.into_iter().for_each(|notice| self.notice(notice));
            if !self.held.has(socket) {
                self.sockets.release(socket, now);
            }
        }
    }

    /// Asks for the queue pairs that a message names.
    fn inquire(&self, message: &Message) -> Inquiry {
        let mut inquiry = Inquiry::new(self.sockets.waker());
        match message {
            Message::Hello(hello) | Message::Accept(hello) => {
                inquiry.ask(&self.context, &hello.address);
                if hello.datagram.is_some() && self.datagrams.is_none() {
                    inquiry.ask_to_activate(&self.context);
                }
                for (rail, address) in hello.rails.iter().enumerate() {
                    self.inquire_on(rail, address.as_ref(), &mut inquiry);
                }
            }
            Message::Renew(renewal) => {
                self.inquire_on(renewal.rail.into(), Some(&renewal.hello.address), &mut inquiry);
            }
            Message::Rail(word) => {
                if let RailNews::Made(address) = &word.news {
                    self.inquire_on(word.rail.into(), Some(address), &mut inquiry);
                }
            }
            Message::Ready | Message::Reject(_) | Message::Farewell => {}
        }
        inquiry
    }

    fn inquire_on(&self, rail: usize, address: Option<&QpAddress>, inquiry: &mut Inquiry) {
        let context: Option<&Context> = self.rails.context(rail).or((rail == 0).then_some(&self.context));
        if let (Some(context), Some(address)) = (context, address) {
            inquiry.ask(context, address);
        }
    }
}
