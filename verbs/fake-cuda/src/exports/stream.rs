//! Streams and events.

use std::ffi::c_uint;

use super::{put, valid};
use crate::code::{self, Code, Outcome};
use crate::stream::{Event, Stream, Work};
use crate::world::{Needs, State, call};

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(stream: *mut u64, flags: c_uint) -> Code {
    call("cuStreamCreate", Needs::Context, |world, device| {
        valid(flags <= NON_BLOCKING && !stream.is_null())?;
        let handle = world.add(device, State::Stream(Stream::new(flags & NON_BLOCKING == 0)));
        // SAFETY: the caller's.
        unsafe { put(stream, handle) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: u64) -> Code {
    call("cuStreamDestroy_v2", Needs::Ending, |world, device| {
        let handle = world.stream_handle("cuStreamDestroy", device, stream)?;
        let stream = world.stream(handle);
        if stream.hidden {
            return Err(code::INVALID_HANDLE);
        }
        stream.gone = true;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: u64) -> Code {
    call("cuStreamSynchronize", Needs::Context, |world, device| {
        let handle = world.stream_handle("cuStreamSynchronize", device, stream)?;
        let (device, mark) = (world.stream_device(handle), world.mark(handle));
        world.synchronize(device, vec![mark])
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(stream: u64) -> Code {
    call("cuStreamQuery", Needs::Context, |world, device| {
        let handle = world.stream_handle("cuStreamQuery", device, stream)?;
        world.query_stream(handle)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: u64, event: u64, flags: c_uint) -> Code {
    call("cuStreamWaitEvent", Needs::Context, |world, device| {
        valid(flags <= 1)?;
        let handle = world.stream_handle("cuStreamWaitEvent", device, stream)?;
        let (_, mark) = world.event_mark("cuStreamWaitEvent", event)?;
        if let Some(mark) = mark {
            world.enqueue("cuStreamWaitEvent", handle, vec![mark], Work::Wait);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(event: *mut u64, flags: c_uint) -> Code {
    call("cuEventCreate", Needs::Context, |world, device| {
        let interprocess = flags & INTERPROCESS != 0;
        let untimed = flags & DISABLE_TIMING != 0;
        valid(flags <= 7 && (untimed || !interprocess) && !event.is_null())?;
        let handle = world.add(device, State::Event(Event::new(!untimed)));
        // SAFETY: the caller's.
        unsafe { put(event, handle) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: u64) -> Code {
    call("cuEventDestroy_v2", Needs::Ending, |world, _| {
        world.event("cuEventDestroy", event)?;
        world.remove(event);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: u64, stream: u64) -> Code {
    call("cuEventRecord", Needs::Context, |world, device| {
        let handle = world.stream_handle("cuEventRecord", device, stream)?;
        let (owner, _) = world.event("cuEventRecord", event)?;
        if owner != world.stream_device(handle) {
            return Err(code::INVALID_HANDLE);
        }
        world.enqueue("cuEventRecord", handle, Vec::new(), Work::Record(event));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: u64) -> Code {
    call("cuEventQuery", Needs::Context, |world, _| world.query_event("cuEventQuery", event))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: u64) -> Code {
    call("cuEventSynchronize", Needs::Context, |world, _| {
        let (device, mark) = world.event_mark("cuEventSynchronize", event)?;
        world.synchronize(device, mark.into_iter().collect())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventElapsedTime(milliseconds: *mut f32, start: u64, end: u64) -> Code {
    call("cuEventElapsedTime", Needs::Context, |world, _| {
        let mut time = |event| -> Outcome<_> { world.event_time("cuEventElapsedTime", event) };
        let (start, end) = (time(start)?, time(end)?);
        let elapsed = end.saturating_duration_since(start).as_secs_f32() * 1e3;
        // SAFETY: the caller's.
        unsafe { put(milliseconds, elapsed) }
    })
}

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: c_uint = 2;
/// `CU_EVENT_INTERPROCESS`.
const INTERPROCESS: c_uint = 4;
