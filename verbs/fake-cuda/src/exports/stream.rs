//! Streams and events.

use std::ffi::{c_int, c_uint};

use super::{put, supported, valid};
use crate::code::{self, Code, Outcome};
use crate::settings::attribute;
use crate::stream::{Condition, Event, GREATEST_PRIORITY, Stream, Word, Work};
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

/// What lies outside of the range is taken for its ends, as the driver does.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreateWithPriority(stream: *mut u64, flags: c_uint, priority: c_int) -> Code {
    call("cuStreamCreateWithPriority", Needs::Context, |world, device| {
        valid(flags <= NON_BLOCKING && !stream.is_null())?;
        let priority = priority.clamp(GREATEST_PRIORITY, 0);
        let mut made = Stream::new(flags & NON_BLOCKING == 0);
        made.priority = priority;
        let handle = world.add(device, State::Stream(made));
        // SAFETY: the caller's.
        unsafe { put(stream, handle) }
    })
}

/// Either may be null.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> Code {
    call("cuCtxGetStreamPriorityRange", Needs::Context, |_, _| {
        for (place, value) in [(least, 0), (greatest, GREATEST_PRIORITY)] {
            if !place.is_null() {
                // SAFETY: the caller's.
                unsafe { put(place, value)? };
            }
        }
        Ok(())
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
extern "C" fn cuStreamWaitValue32_v2(stream: u64, address: u64, value: u32, flags: c_uint) -> Code {
    wait_value("cuStreamWaitValue32_v2", stream, (address, 4), value.into(), flags)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitValue64_v2(stream: u64, address: u64, value: u64, flags: c_uint) -> Code {
    wait_value("cuStreamWaitValue64_v2", stream, (address, 8), value, flags)
}

/// Those of the first version of these functions, which few drivers were set up for, are not there. The second has words of 4
/// bytes on all devices.
fn wait_value(symbol: &'static str, stream: u64, (at, len): (u64, u64), value: u64, flags: c_uint) -> Code {
    call(symbol, Needs::Context, |world, device| {
        let handle = world.stream_handle(symbol, device, stream)?;
        let condition = match flags & !WAIT_VALUE_FLUSH {
            0 => Condition::AtLeast,
            1 => Condition::Equal,
            2 => Condition::And,
            3 => Condition::Nor,
            _ => return Err(code::INVALID_VALUE),
        };
        let of = &world.devices[world.stream_device(handle)];
        let has = |attribute| of.settings.attribute(attribute) != 0;
        supported(len == 4 || has(attribute::STREAM_WAIT_VALUE_64))?;
        supported(condition != Condition::Nor || has(attribute::STREAM_WAIT_VALUE_NOR))?;
        supported(flags & WAIT_VALUE_FLUSH == 0 || has(attribute::CAN_FLUSH_REMOTE_WRITES))?;
        valid(at.is_multiple_of(len))?;
        if let Err((_, what)) = world.resolve(device, at, len, false, true) {
            world.violation(device, symbol, what);
            return Err(code::INVALID_VALUE);
        }
        let word = Word { at, len, value, condition };
        world.enqueue(symbol, handle, Vec::new(), Work::Until(word));
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

/// `CU_STREAM_WAIT_VALUE_FLUSH`.
const WAIT_VALUE_FLUSH: c_uint = 1 << 30;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: c_uint = 2;
/// `CU_EVENT_INTERPROCESS`.
const INTERPROCESS: c_uint = 4;
