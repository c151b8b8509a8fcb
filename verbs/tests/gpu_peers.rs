//! GPUs that reach each other's memory, or do not: copies between two of them. On a CUDA driver in memory, which counts those
//! copies that the GPU which does them does not reach by itself.

use qpair_fake_cuda::{code, control};
use qpair_verbs::calc::{Calc, DataType, ReduceOp, Scale};
use qpair_verbs::{Gpu, GpuBuffer};

use support::{contents, gpu};

mod support;

/// Two GPUs, whose memory is mapped or plain, that reach each other or do not.
fn two(is_mapped: bool, reach: bool) -> [(Gpu, control::Device); 2] {
    [(); 2].map(|()| {
        let fake = control::add_device().unwrap();
        fake.set_attribute(102, i32::from(is_mapped)).unwrap();
        fake.set("peer", u64::from(reach)).unwrap();
        (Gpu::open(fake.ordinal() as usize).unwrap(), fake)
    })
}

#[test]
fn memory_of_two_gpus_is_copied_and_combined() {
    let ((one, fake_one), (other, fake_other)) = (gpu(), gpu());
    let (mut a, mut b) = (one.alloc(1000).unwrap(), other.alloc(1000).unwrap());
    a.write(0, &[3; 1000]).unwrap();
    b.write(0, &[4; 1000]).unwrap();
    a.combine_from((0, &b, 0), 1000, Calc::of::<u8>(ReduceOp::Sum)).unwrap();
    assert_eq!(contents(&a), [7; 1000]);
    b.copy_from(10, &a, 0, 500).unwrap();
    assert_eq!(contents(&b)[..20], [vec![4; 10], vec![7; 10]].concat());
    a.scale(0, 1000, DataType::U8, Scale::Multiply(2.0)).unwrap();
    assert_eq!(contents(&a), [14; 1000]);
    assert_eq!((fake_one.violations(), fake_other.violations()), (String::new(), String::new()));
}

#[test]
fn copies_between_two_gpus_go_straight_where_these_reach_each_other() {
    for (is_mapped, reach) in [(true, true), (false, true), (true, false), (false, false)] {
        let [(one, fake_one), (other, fake_other)] = two(is_mapped, reach);
        let staged = || fake_one.count("staged").unwrap() + fake_other.count("staged").unwrap();
        let (mut early, mut theirs) = (one.alloc(1000).unwrap(), other.alloc(1000).unwrap());
        let exchange = |a: &mut GpuBuffer, b: &mut GpuBuffer| {
            a.write(0, &[3; 1000]).unwrap();
            b.copy_from(0, a, 0, 1000).unwrap();
            b.write(0, &[4; 10]).unwrap();
            a.copy_from(0, b, 0, 1000).unwrap();
            assert_eq!(contents(a), [vec![4; 10], vec![3; 990]].concat());
        };
        exchange(&mut early, &mut theirs);
        // What is allocated later too.
        let mut late = one.alloc(1000).unwrap();
        exchange(&mut theirs, &mut late);
        assert_eq!(one.reaches(&other), reach);
        assert_eq!(staged(), if reach { 0 } else { 4 }, "mapped: {is_mapped}");
        let asked =
            fake_one.count("cuDeviceCanAccessPeer").unwrap() + fake_other.count("cuDeviceCanAccessPeer").unwrap();
        assert_eq!(asked, 2, "each is asked once");
        drop((early, theirs, late));
        assert_eq!((fake_one.violations(), fake_other.violations()), (String::new(), String::new()));
    }
}

/// One range that is refused, or one moment, closes nothing else.
#[test]
fn what_goes_wrong_between_two_gpus_costs_no_more_than_that() {
    let [(one, fake_one), (other, fake_other)] = two(true, true);
    let (refused, open, mut theirs) = (one.alloc(100).unwrap(), one.alloc(100).unwrap(), other.alloc(100).unwrap());
    let staged = || fake_one.count("staged").unwrap() + fake_other.count("staged").unwrap();
    fake_other.fail("cuCtxEnablePeerAccess", 1, code::OUT_OF_MEMORY).unwrap();
    theirs.copy_from(0, &open, 0, 100).unwrap();
    assert_eq!(staged(), 1);
    fake_one.fail("cuMemSetAccess", 1, code::NOT_SUPPORTED).unwrap();
    theirs.copy_from(0, &open, 0, 100).unwrap();
    assert_eq!((staged(), one.reaches(&other)), (1, true));
    theirs.copy_from(0, &refused, 0, 100).unwrap();
    assert_eq!(staged(), 2);
    assert_eq!((fake_one.violations(), fake_other.violations()), (String::new(), String::new()));
}

#[test]
fn another_library_may_have_opened_the_way_between_two_gpus() {
    let [(one, fake_one), (other, _)] = two(true, true);
    let (a, mut b) = (one.alloc(100).unwrap(), other.alloc(100).unwrap());
    fake_one.fail("cuCtxEnablePeerAccess", 1, code::PEER_ACCESS_ALREADY_ENABLED).unwrap();
    b.copy_from(0, &a, 0, 100).unwrap();
    assert!(one.reaches(&other));
}
