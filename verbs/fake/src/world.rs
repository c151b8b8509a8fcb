//! Everything that exists: devices, the objects made on them, and which object is used by which.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::c_int;
use std::fmt;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use qpair_verbs_sys::{IBV_LINK_LAYER_ETHERNET, ibv_ah_attr, ibv_context, verbs_context};

use crate::cm::Cm;
use crate::cq::{Channel, Cq, EventQueue};
use crate::device::Device;
use crate::memory::{Mr, Mw, Pd};
use crate::qp::{Ah, Qp, Srq};

/// All state of the library, but for the rings of `null` devices.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) devices: Vec<Device>,
    /// Live objects by the address of their C structure, which is never freed, so no address comes twice.
    objects: HashMap<usize, Object>,
    /// What destroyed ones were called.
    dead: HashMap<usize, (usize, String)>,
    pub(crate) cm: Cm,
    pub(crate) keys: HashMap<u32, usize>,
    pub(crate) qpns: HashMap<u32, usize>,
    /// Queue pairs whose first request waits for the peer.
    pub(crate) waiting: BTreeSet<usize>,
    next_key: u32,
    next_qpn: u32,
}

// SAFETY: the pointers in it are addresses of structures that are never freed, written to only with the lock held.
unsafe impl Send for World {}

/// A live object.
struct Object {
    kind: Kind,
    device: usize,
    handle: u32,
    users: u32,
    parents: Vec<usize>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    Context,
    Pd,
    Td,
    Mr,
    Mw,
    Channel,
    Cq,
    Srq,
    Qp,
    Ah,
}

/// What is known of an object beside its C structure.
pub(crate) enum State {
    Context(Context),
    Pd(Pd),
    Td,
    Mr(Mr),
    Mw(Mw),
    Channel(Channel),
    Cq(Cq),
    Srq(Srq),
    Qp(Box<Qp>),
    Ah(Ah),
}

/// An open device.
pub(crate) struct Context {
    pub(crate) outer: *mut verbs_context,
    pub(crate) events: EventQueue<qpair_verbs_sys::ibv_async_event>,
}

/// The state of the library, for this thread alone.
pub(crate) fn world() -> MutexGuard<'static, World> {
    static WORLD: LazyLock<Mutex<World>> = LazyLock::new(|| Mutex::new(World::with_devices_of_environment()));
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same, once all events about an object are acknowledged, as the real library waits for before it destroys one: another
/// thread may be about to. After a second the caller finds them so, and says that the real library would hang.
pub(crate) fn world_when(acknowledged: impl Fn(&World) -> bool) -> MutexGuard<'static, World> {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(1);
    loop {
        let world = world();
        if acknowledged(&world) || std::time::Instant::now() > deadline {
            return world;
        }
        drop(world);
        std::thread::yield_now();
    }
}

/// The same, once the kernel has found who is at the other end of a path from the device of `object`, or has given that up.
pub(crate) fn world_at(object: usize, path: &ibv_ah_attr) -> MutexGuard<'static, World> {
    let mut counted = None;
    loop {
        let mut world = world();
        let waits = world.neighbour(object, path) == Neighbour::IsLookedFor;
        match (counted, world.objects.get(&object).map(|live| live.device)) {
            (None, Some(device)) if waits => {
                world.devices[device].waiting += 1;
                counted = Some(device);
            }
            (Some(device), _) if !waits => world.devices[device].waiting -= 1,
            _ => {}
        }
        if !waits {
            return world;
        }
        drop(world);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Whether a peer's port is found on an Ethernet network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Neighbour {
    IsKnown,
    IsLookedFor,
    DoesNotAnswer,
}

impl World {
    fn with_devices_of_environment() -> World {
        let mut world = World { next_key: 1, next_qpn: 0x11, ..World::default() };
        let names = std::env::var("FAKE_IBVERBS_DEVICES").unwrap_or_else(|_| "fake0".to_owned());
        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            // A name given twice is one device.
            let _ = world.add_device(name);
        }
        world
    }

    /// Makes a device.
    pub(crate) fn add_device(&mut self, name: &str) -> Result<(), c_int> {
        if name.is_empty() || name.len() > 63 || name.contains('\0') {
            return Err(libc::EINVAL);
        }
        if self.device_named(name).is_some() {
            return Err(libc::EEXIST);
        }
        self.devices.push(Device::new(name, self.devices.len()));
        Ok(())
    }

    pub(crate) fn device_named(&self, name: &str) -> Option<usize> {
        self.devices.iter().position(|device| device.name == name)
    }

    /// The other end of a path from the device of `object`, as the setting `neighbours` has it.
    pub(crate) fn neighbour(&self, object: usize, path: &ibv_ah_attr) -> Neighbour {
        let settings = self.objects.get(&object).map(|live| &self.devices[live.device].settings);
        let ethernet = u64::from(IBV_LINK_LAYER_ETHERNET);
        match settings.filter(|of| of.get("link_layer") == ethernet && path.is_global != 0) {
            Some(of) if of.get("neighbours") == 0 => Neighbour::IsLookedFor,
            Some(of) if of.get("neighbours") == 2 => Neighbour::DoesNotAnswer,
            _ => Neighbour::IsKnown,
        }
    }

    /// A call of a function on an object: refuses one that is destroyed, fails if the script says so.
    pub(crate) fn enter(&mut self, symbol: &str, object: usize) -> Result<usize, c_int> {
        let Some(live) = self.objects.get(&object) else {
            if let Some((device, name)) = self.dead.get(&object) {
                let line = format!("{symbol}: {name} was destroyed before");
                self.devices[*device].violations.push(line);
            }
            return Err(libc::EINVAL);
        };
        let (device, name) = (live.device, live.name());
        if self.devices[device].removed && !NOT_OF_THE_KERNEL.contains(&symbol) {
            if DESTROYS.iter().any(|destroys| symbol.starts_with(destroys)) {
                // The kernel has done so; what the library has of it is gone now.
                drop(self.take(object));
            }
            self.devices[device].record(format_args!("{symbol} {name} -> errno {}", libc::EIO));
            return Err(libc::EIO);
        }
        if let Err(errno) = self.devices[device].script.call(symbol) {
            self.devices[device].record(format_args!("{symbol} {name} -> errno {errno}"));
            return Err(errno);
        }
        Ok(device)
    }

    /// Notes a call that went well.
    pub(crate) fn record(&mut self, symbol: &str, object: usize, detail: impl fmt::Display) {
        let Some(live) = self.objects.get(&object) else { return };
        let (device, name) = (live.device, live.name());
        self.devices[device].record(format_args!("{symbol} {name}{detail}"));
    }

    /// Notes something that no caller may do.
    pub(crate) fn violation(&mut self, object: usize, what: impl fmt::Display) {
        let Some(live) = self.objects.get(&object) else { return };
        let (device, name) = (live.device, live.name());
        self.devices[device].violations.push(format!("{name}: {what}"));
    }

    /// Whether one more object of a kind fits the device.
    pub(crate) fn room(&self, device: usize, kind: Kind, limit: &str) -> Result<(), c_int> {
        let device = &self.devices[device];
        if device.live(kind) < device.settings.get(limit) { Ok(()) } else { Err(libc::ENOMEM) }
    }

    /// Takes a new object in, and returns its handle.
    pub(crate) fn add(
        &mut self,
        symbol: &str,
        device: usize,
        address: usize,
        parents: &[usize],
        state: State,
        detail: impl fmt::Display,
    ) -> u32 {
        let kind = state.kind();
        let handle = self.devices[device].created(kind);
        // An address given back by the allocator would make two objects one; structures are therefore never freed.
        assert!(!self.dead.contains_key(&address), "structures are never freed");
        for parent in parents {
            self.use_one_more(*parent);
        }
        let object = Object { kind, device, handle, users: 0, parents: parents.to_vec(), state };
        self.objects.insert(address, object);
        self.record(symbol, address, detail);
        handle
    }

    /// Takes an object out that nothing uses.
    pub(crate) fn remove(&mut self, symbol: &str, address: usize) -> Result<State, c_int> {
        let live = self.objects.get(&address).ok_or(libc::EINVAL)?;
        if live.users > 0 {
            let (device, line) = (live.device, format!("{symbol} {} -> errno {}", live.name(), libc::EBUSY));
            self.devices[device].record(format_args!("{line}"));
            return Err(libc::EBUSY);
        }
        self.record(symbol, address, "");
        Ok(self.take(address))
    }

    /// Takes an object out, used or not.
    pub(crate) fn take(&mut self, address: usize) -> State {
        let object = self.objects.remove(&address).expect("the caller has found it");
        for parent in &object.parents {
            self.use_one_less(*parent);
        }
        self.devices[object.device].destroyed(object.kind);
        self.dead.insert(address, (object.device, object.name()));
        object.state
    }

    pub(crate) fn use_one_more(&mut self, address: usize) {
        if let Some(object) = self.objects.get_mut(&address) {
            object.users += 1;
        }
    }

    pub(crate) fn use_one_less(&mut self, address: usize) {
        if let Some(object) = self.objects.get_mut(&address) {
            object.users = object.users.saturating_sub(1);
        }
    }

    /// How many objects use this one.
    pub(crate) fn users(&self, address: usize) -> u32 {
        self.objects.get(&address).map_or(0, |object| object.users)
    }

    pub(crate) fn name(&self, address: usize) -> String {
        self.objects.get(&address).map_or_else(|| "nothing".to_owned(), Object::name)
    }

    pub(crate) fn device_of(&self, address: usize) -> Option<usize> {
        self.objects.get(&address).map(|object| object.device)
    }

    /// The live objects of a kind on a device, oldest first, with their handles.
    pub(crate) fn live(&self, device: usize, kind: Kind) -> Vec<(u32, usize)> {
        let of_kind = self.objects.iter().filter(|(_, object)| (object.device, object.kind) == (device, kind));
        let mut found: Vec<_> = of_kind.map(|(address, object)| (object.handle, *address)).collect();
        found.sort_unstable();
        found
    }

    /// The names of all live objects of a device.
    pub(crate) fn names(&self, device: usize) -> Vec<String> {
        let mut found: Vec<_> = self.objects.values().filter(|object| object.device == device).collect();
        found.sort_unstable_by_key(|object| (object.kind, object.handle));
        found.into_iter().map(Object::name).chain(self.cm.names(device)).collect()
    }

    /// A new key, the low byte of which is for its owner.
    pub(crate) fn new_key(&mut self, object: usize) -> u32 {
        let key = self.next_key.wrapping_mul(0x100);
        self.next_key += 1;
        self.keys.insert(key, object);
        key
    }

    pub(crate) fn new_qpn(&mut self, qp: usize) -> u32 {
        let taken: HashSet<u32> = self.qpns.keys().copied().collect();
        while taken.contains(&self.next_qpn) {
            self.next_qpn = (self.next_qpn + 1) & 0xff_ffff;
        }
        let qpn = self.next_qpn;
        self.next_qpn = (qpn + 1).max(0x11) & 0xff_ffff;
        self.qpns.insert(qpn, qp);
        qpn
    }
}

macro_rules! states {
    ($($get:ident $get_mut:ident $Variant:ident $type:ty;)*) => {
        impl World {
            $(
                #[allow(dead_code, reason = "one of each kind")]
                pub(crate) fn $get(&self, address: usize) -> Option<&$type> {
                    match &self.objects.get(&address)?.state {
                        State::$Variant(state) => Some(state),
                        _ => None,
                    }
                }

                #[allow(dead_code, reason = "one of each kind")]
                pub(crate) fn $get_mut(&mut self, address: usize) -> Option<&mut $type> {
                    match &mut self.objects.get_mut(&address)?.state {
                        State::$Variant(state) => Some(state),
                        _ => None,
                    }
                }
            )*
        }

        impl State {
            fn kind(&self) -> Kind {
                match self {
                    State::Td => Kind::Td,
                    $(State::$Variant(_) => Kind::$Variant,)*
                }
            }
        }
    };
}

states! {
    context context_mut Context Context;
    pd pd_mut Pd Pd;
    mr mr_mut Mr Mr;
    mw mw_mut Mw Mw;
    channel channel_mut Channel Channel;
    cq cq_mut Cq Cq;
    srq srq_mut Srq Srq;
    qp qp_mut Qp Qp;
    ah ah_mut Ah Ah;
}

impl Context {
    pub(crate) fn inner(&self) -> *mut ibv_context {
        // SAFETY: the structure is never freed; only an address inside it is taken.
        unsafe { &raw mut (*self.outer).context }
    }
}

impl Object {
    fn name(&self) -> String {
        format!("{}{}", self.kind.name(), self.handle)
    }
}

impl Kind {
    pub(crate) const ALL: [Kind; 10] =
        [Kind::Context, Kind::Pd, Kind::Td, Kind::Mr, Kind::Mw, Kind::Channel, Kind::Cq, Kind::Srq, Kind::Qp, Kind::Ah];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Context => "context",
            Kind::Pd => "pd",
            Kind::Td => "td",
            Kind::Mr => "mr",
            Kind::Mw => "mw",
            Kind::Channel => "channel",
            Kind::Cq => "cq",
            Kind::Srq => "srq",
            Kind::Qp => "qp",
            Kind::Ah => "ah",
        }
    }
}

/// What a device that was taken away does not refuse: its library does it alone, or by descriptors that are there still.
const NOT_OF_THE_KERNEL: [&str; 9] = [
    "ibv_ack_async_event",
    "ibv_ack_cq_events",
    "ibv_close_device",
    "ibv_destroy_comp_channel",
    "ibv_get_async_event",
    "ibv_get_cq_event",
    "ibv_poll_cq",
    "ibv_req_notify_cq",
    "ibv_start_poll",
];
const DESTROYS: [&str; 3] = ["ibv_destroy_", "ibv_dealloc_", "ibv_dereg_"];
