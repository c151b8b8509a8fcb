//! Messages of the handshake that name queue pairs of a process that has not answered for them yet, or on a port that is looked for:
//! they wait, with what follows them on their streams, and hold up nobody else.

use std::time::Duration;

use qpair_verbs::{Inquiry, QpAddress};

use super::Worker;
use super::endpoint::{Endpoint, Stage};
use super::handshake::Party;
use crate::cm::{Hello, Message, Notice, RailNews, RailWord, SocketId};

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
    /// The notice, unless it is to wait behind a message. Where a stream has ended, or its time is over, its message is dropped.
    pub(super) fn pass(&mut self, notice: Notice) -> Option<Notice> {
        let socket = notice.socket();
        let Some(place) = self.0.iter().position(|waiting| waiting.socket == socket) else { return Some(notice) };
        match notice {
            Notice::TimedOut { .. } | Notice::Ended { .. } => {
                self.0.remove(place);
                Some(notice)
            }
            // That the peer has all that it is to have is so whatever came before.
            Notice::Message { message: Message::Farewell, .. } => Some(notice),
            _ => {
                self.0[place].behind.push(notice);
                None
            }
        }
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
    /// Deals with a message, once there is an answer for each queue pair that it names.
    pub(super) fn hear(&mut self, socket: SocketId, message: Message) {
        let inquiry = self.inquire(socket, &message);
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

    /// Asks for the queue pairs that a message names, if this side is to connect to them.
    fn inquire(&mut self, socket: SocketId, message: &Message) -> Inquiry {
        let mut inquiry = Inquiry::new(self.sockets.waker());
        let party = self.parties.get(socket).copied();
        let endpoint = match party {
            Some(Party::Endpoint(ep)) => self.endpoints.get_mut(ep),
            _ => None,
        };
        match (message, party, endpoint) {
            (Message::Hello(hello), Some(Party::Stranger(_)), _) => self.inquire_of(hello, &mut inquiry),
            (Message::Accept(hello), _, Some(Endpoint { stage: Stage::Greeting(_), .. })) => {
                self.inquire_of(hello, &mut inquiry);
            }
            (Message::Renew(renewal), _, Some(endpoint)) if endpoint.link.retains() => {
                self.rails.ask(&mut inquiry, &self.context, renewal.rail.into(), &renewal.hello.address);
            }
            (Message::Rail(RailWord { rail, news: RailNews::Made(address) }), _, Some(endpoint)) => {
                let rail = usize::from(*rail);
                let has_it = endpoint.lanes.as_ref().is_some_and(|lanes| rail < lanes.count());
                self.inquire_on(rail, Some(address).filter(|_| has_it), &mut inquiry);
            }
            _ => {}
        }
        inquiry
    }

    /// Of a connection that is to be.
    fn inquire_of(&self, hello: &Hello, inquiry: &mut Inquiry) {
        self.rails.ask(inquiry, &self.context, 0, &hello.address);
        if hello.datagram.is_some() && self.datagrams.is_none() {
            inquiry.ask_to_activate(&self.context);
        }
        for (rail, address) in hello.rails.iter().enumerate() {
            self.inquire_on(rail, address.as_ref(), inquiry);
        }
    }

    fn inquire_on(&self, rail: usize, address: Option<&QpAddress>, inquiry: &mut Inquiry) {
        if let Some(address) = address.filter(|_| rail < self.rails.count()) {
            self.rails.ask(inquiry, &self.context, rail, address);
        }
    }
}
