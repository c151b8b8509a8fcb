//! What belongs to a stream, by the stream's number: a look at one place, however many there are.

use super::sockets::SocketId;

/// One value for each stream at most. What belongs to a stream that ended is dropped with the next that takes its place.
#[derive(Debug)]
pub(crate) struct SocketMap<T> {
    places: Vec<Option<(SocketId, T)>>,
}

impl<T> Default for SocketMap<T> {
    fn default() -> Self {
        SocketMap { places: Vec::new() }
    }
}

impl<T> SocketMap<T> {
    pub(crate) fn insert(&mut self, id: SocketId, value: T) {
        if self.places.len() <= id.key() {
            self.places.resize_with(id.key() + 1, || None);
        }
        self.places[id.key()] = Some((id, value));
    }

    pub(crate) fn get(&self, id: SocketId) -> Option<&T> {
        let (of, value) = self.places.get(id.key())?.as_ref()?;
        (*of == id).then_some(value)
    }

    pub(crate) fn remove(&mut self, id: SocketId) -> Option<T> {
        let place = self.places.get_mut(id.key())?;
        let (_, value) = place.take_if(|(of, _)| *of == id)?;
        Some(value)
    }
}
