//! Memory of `cuMemAlloc` in other processes.

use std::fmt::Write;
use std::io::Write as _;
use std::process::Child;

use qpair_fake_cuda::abi::IpcHandle;
use qpair_fake_cuda::code;
use qpair_fake_cuda::control::Device;

use crate::ground::*;

fn handle(address: u64) -> IpcHandle {
    let mut handle = IpcHandle { bytes: [0; 64] };
    ok(cuIpcGetMemHandle(&mut handle, address));
    handle
}

fn to_text(handle: IpcHandle) -> String {
    handle.bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes all");
        text
    })
}

fn of_text(text: &str) -> IpcHandle {
    let byte = |at: usize| u8::from_str_radix(&text[at * 2..at * 2 + 2], 16).expect("hexadecimal");
    IpcHandle { bytes: std::array::from_fn(byte) }
}

#[test]
fn another_process_opens_it() {
    if let Some(text) = given() {
        let ground = Ground::on(Device::of(3));
        let open = || get(|to| cuIpcOpenMemHandle_v2(to, of_text(&text), 1));
        let (one, two) = (open(), open());
        assert_eq!((one, bytes(one, 5)), (two, b"hello".to_vec()));
        assert_eq!(bytes(one + 5, 95), [0; 95]);
        assert_eq!(cuMemcpy(one, one + 1, 100), code::INVALID_VALUE);
        put(one, b"there");
        assert!(rights(one).starts_with("---"));
        assert_eq!(cuMemFree_v2(one), code::INVALID_VALUE);
        let mut handle = IpcHandle { bytes: [0; 64] };
        assert_eq!(cuIpcGetMemHandle(&mut handle, one), code::INVALID_VALUE);
        assert_eq!(cuIpcOpenMemHandle_v2(&mut 0, of_text(&text), 0), code::INVALID_VALUE);
        assert!(ground.device.live().contains("opening1 of 100 bytes"));
        ok(cuIpcCloseMemHandle(one));
        assert_eq!(bytes(one, 1), b"t");
        ok(cuIpcCloseMemHandle(one));
        assert_eq!(cuIpcCloseMemHandle(one), code::INVALID_VALUE);
        return ground.end_with(&["cuMemFree", "cuIpcCloseMemHandle"]);
    }
    let ground = Ground::new();
    ground.device.set("alloc_offset", 1024).expect("a setting");
    let a = alloc(100);
    put(a, b"hello");
    assert_eq!(cuIpcOpenMemHandle_v2(&mut 0, handle(a), 1), code::INVALID_CONTEXT);
    went_well(elsewhere("ipc::another_process_opens_it", &to_text(handle(a + 3))));
    assert_eq!(bytes(a, 5), b"there");
    ok(cuMemFree_v2(a));
    ground.end();
}

#[test]
fn it_is_not_opened_once_it_has_gone() {
    if given().is_some() {
        let ground = Ground::on(Device::of(4));
        let a = alloc(100);
        println!("handle: {}", to_text(handle(a)));
        std::io::stdin().read_line(&mut String::new()).expect("piped");
        ok(cuMemFree_v2(a));
        println!("freed: yes");
        std::io::stdin().read_line(&mut String::new()).expect("piped");
        return ground.end();
    }
    let ground = Ground::new();
    let mut child = elsewhere("ipc::it_is_not_opened_once_it_has_gone", "yes");
    let handle = of_text(&told(&mut child, "handle: "));
    let open = || {
        let mut address = 0;
        (cuIpcOpenMemHandle_v2(&mut address, handle, 1), address)
    };
    let (result, address) = open();
    ok(result);
    ok(cuIpcCloseMemHandle(address));
    let next = |child: &mut Child| child.stdin.as_mut().expect("piped").write_all(b"\n").expect("it reads");
    next(&mut child);
    told(&mut child, "freed: ");
    assert_eq!(open().0, code::INVALID_VALUE);
    next(&mut child);
    went_well(child);
    assert_eq!(open().0, code::MAP_FAILED);
    assert_eq!(cuIpcOpenMemHandle_v2(&mut 0, IpcHandle { bytes: [1; 64] }, 1), code::INVALID_VALUE);
    ground.end();
}
