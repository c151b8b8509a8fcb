//! GPU memory registered with a device of libibverbs: by a DMA-buf, on a CUDA driver in memory.

use qpair_fake_cuda::{code, control};
use qpair_fake_ibverbs::control::Device;
use qpair_verbs::{Access, Context, Flush, Gpu, GpuError, MemoryError};

use crate::ground::{Ground, in_fake, in_fake_with, in_process};

/// The path of a library for a process's environment.
fn path(library: std::path::PathBuf) -> String {
    library.into_os_string().into_string().expect("a plain path")
}

/// A GPU of its own for a test, with these attributes.
fn gpu_with(attributes: &[(u32, i32)]) -> (control::Device, Gpu) {
    let cuda = control::add_device().unwrap();
    attributes.iter().for_each(|&(attribute, value)| cuda.set_attribute(attribute, value).unwrap());
    (cuda, Gpu::open(cuda.ordinal() as usize).unwrap())
}

#[test]
fn a_dma_buf_is_registered_and_taken_back_before_the_memory_is_free() {
    in_fake(|| {
        let (cuda, gpu) = gpu_with(&[]);
        let ground = Ground::new();
        let region = ground.pd.register_gpu(gpu.alloc(5000).unwrap(), Access::REMOTE_WRITE).unwrap();
        assert_eq!((region.path().name(), region.path().reason()), ("dma-buf", ""));
        assert!(ground.fake.calls().contains("ibv_reg_dmabuf_mr"), "{}", ground.fake.calls());
        assert_eq!(region.remote(0..5000).len, 5000);
        let buffer = region.revoke().unwrap();
        assert!(!ground.fake.live().contains("mr"), "{}", ground.fake.live());
        drop(buffer);
        assert!(!cuda.live().contains("mapping"), "{}", cuda.live());
        ground.close();
    });
}

#[test]
fn by_its_address_where_the_module_for_that_is_loaded() {
    in_fake_with(&[("QPAIR_PEERMEM", "1")], || {
        let (cuda, gpu) = gpu_with(&[(DMA_BUF, 0)]);
        let ground = Ground::new();
        let buffer = gpu.alloc(5000).unwrap();
        let address = buffer.address();
        let region = ground.pd.register_gpu(buffer, Access::REMOTE_WRITE).unwrap();
        let path = region.path();
        assert_eq!((path.name(), path.is_direct()), ("peermem", true));
        assert_eq!(path.reason(), "DMA-buf: the GPU's driver exports none");
        assert_eq!(region.remote(0..5000).addr, address);
        let calls = ground.fake.calls();
        assert!(calls.contains("ibv_reg_mr") && !calls.contains("ibv_reg_dmabuf_mr"), "{calls}");
        let buffer = region.revoke().unwrap();
        assert!(!ground.fake.live().contains("mr"), "{}", ground.fake.live());
        // A module that does not have the memory, as one of another driver.
        for symbol in ["ibv_reg_mr", "ibv_reg_mr_iova2"] {
            ground.fake.fail(symbol, 1, libc::EFAULT).unwrap();
        }
        let failed = ground.pd.register_gpu(buffer, Access::REMOTE_WRITE).unwrap_err();
        assert!(failed.error.to_string().contains("; peermem: "), "{}", failed.error);
        drop(failed);
        assert!(!cuda.live().contains("mapping"), "{}", cuda.live());
        ground.close();
    });
}

#[test]
fn a_module_that_is_said_not_to_be_there_is_not_taken() {
    in_fake_with(&[("QPAIR_PEERMEM", "0")], || {
        let (_, gpu) = gpu_with(&[(DMA_BUF, 0)]);
        let ground = Ground::new();
        let failed = ground.pd.register_gpu(gpu.alloc(64).unwrap(), Access::NONE).unwrap_err();
        assert!(failed.error.to_string().contains("nvidia-peermem is not loaded"), "{}", failed.error);
        ground.close();
    });
}

/// The processor copies short messages out of the completion, and can not to there.
#[test]
fn receives_into_gpu_memory_are_refused_where_the_library_copies_them() {
    in_fake_with(&[("MLX5_SCATTER_TO_CQE", "1")], || {
        let (_, gpu) = gpu_with(&[]);
        let ground = Ground::new();
        let (mut a, b) = ground.pair();
        let region = ground.pd.register_gpu(gpu.alloc(64).unwrap(), Access::NONE).unwrap();
        let error = a.recv(region.local(0..64)).post().unwrap_err().error;
        for part in ["memory of a GPU", "have the peer WRITE", "MLX5_SCATTER_TO_CQE=0"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        a.recv(region.local(0..0)).post().unwrap();
        a.send(region.local(0..64)).post().unwrap();
        drop((a, b, region));
        ground.close();
    });
}

#[test]
fn what_a_nic_wrote_is_flushed_as_the_gpu_needs_it() {
    in_fake(|| {
        let ground = Ground::new();
        // Whose kernels see writes in order: nobody's, the owner's, all GPUs'. And whether the processor can flush.
        for (ordering, by_host, expected) in
            [(0, 1, Flush::Done), (0, 0, Flush::ReadBack), (100, 0, Flush::NotNeeded), (200, 1, Flush::NotNeeded)]
        {
            let (cuda, gpu) = gpu_with(&[(WRITES_ORDERING, ordering), (FLUSH_OPTIONS, by_host)]);
            let region = ground.pd.register_gpu(gpu.alloc(64).unwrap(), Access::REMOTE_WRITE).unwrap();
            assert_eq!(region.flush().unwrap(), expected, "{ordering} {by_host}");
            let flushes = cuda.calls().matches("cuFlushGPUDirectRDMAWrites").count();
            assert_eq!(flushes, usize::from(expected == Flush::Done));
            if expected == Flush::Done {
                cuda.fail("cuFlushGPUDirectRDMAWrites", 1, code::UNKNOWN).unwrap();
                let error = region.flush().unwrap_err();
                assert!(error.to_string().contains("cuFlushGPUDirectRDMAWrites failed"), "{error}");
            }
            drop(region);
            assert_eq!(cuda.violations(), "");
        }
        ground.close();
    });
}

#[test]
fn synchronous_copies_are_done_before_a_nic_is_told() {
    in_fake(|| {
        // No virtual memory that can be passed on, of which drivers refuse it.
        let (cuda, gpu) = gpu_with(&[(102, 0)]);
        let ground = Ground::new();
        let register = || ground.pd.register_gpu(gpu.alloc(64).unwrap(), Access::REMOTE_READ).unwrap();
        drop(register());
        let calls = cuda.calls();
        assert!(calls.contains("cuPointerSetAttribute"), "{calls}");
        // One that refuses it is no reason not to register.
        cuda.fail_times("cuPointerSetAttribute", 1, 0, code::NOT_SUPPORTED).unwrap();
        assert_eq!(register().path().name(), "dma-buf");
        ground.close();
    });
}

#[test]
fn where_nothing_does_each_way_is_told_with_its_reason() {
    in_fake(|| {
        let (_, gpu) = gpu_with(&[(DMA_BUF, 0)]);
        let ground = Ground::new();
        let failed = ground.pd.register_gpu(gpu.alloc(64).unwrap(), Access::NONE).unwrap_err();
        let MemoryError::GpuUnreachable { why, .. } = &failed.error else { panic!("{}", failed.error) };
        assert!(why.contains("DMA-buf: the GPU's driver exports none") && why.contains("peermem"), "{why}");
        assert_eq!(failed.buffer.map(|buffer| buffer.len()), Some(64));
        ground.close();
    });
}

#[test]
fn a_device_that_refuses_a_dma_buf_is_told_of() {
    in_fake(|| {
        let (_, gpu) = gpu_with(&[]);
        let ground = Ground::new();
        for nth in [1, 2] {
            ground.fake.fail("ibv_reg_dmabuf_mr", nth, libc::EOPNOTSUPP).unwrap();
            let failed = ground.pd.register_gpu(gpu.alloc(64).unwrap(), Access::NONE).unwrap_err();
            assert!(failed.error.to_string().contains("DMA-buf"), "{}", failed.error);
            assert_eq!(failed.buffer.map(|buffer| buffer.len()), Some(64));
            assert!(!ground.fake.live().contains("mr"), "{}", ground.fake.live());
        }
        ground.close();
    });
}

#[test]
fn gpu_memory_that_a_device_keeps_after_another_refused_it_is_never_given_back() {
    in_fake_with(&[("QPAIR_PEERMEM", "1")], || {
        let (_, gpu) = gpu_with(&[]);
        let ground = Ground::new();
        let fake = Device::new("beside").unwrap();
        let beside = Context::open("beside").unwrap().alloc_pd().unwrap();
        let both = ground.pd.spanning(&[beside]).unwrap();
        ground.fake.fail_times("ibv_dereg_mr", 1, 0, libc::EIO).unwrap();
        // The registration for the program's own requests, then that for peers.
        for nth in [1, 2] {
            fake.fail("ibv_reg_dmabuf_mr", nth, libc::ENOMEM).unwrap();
            let failed = both.register_gpu(gpu.alloc(64).unwrap(), Access::REMOTE_WRITE).unwrap_err();
            assert!(failed.buffer.is_none(), "{}", failed.error);
            assert!(!ground.fake.calls().contains("ibv_reg_mr"), "no other way is tried");
        }
    });
}

#[test]
fn a_driver_that_is_not_there_is_told_of_by_its_file() {
    in_process(&[("QPAIR_LIBCUDA", "/none/libcuda.so")], || {
        let error = Gpu::open(0).unwrap_err();
        assert!(matches!(&error, GpuError::NoDriver { why } if why.contains("/none/libcuda.so")), "{error}");
        assert!(error.to_string().contains("install NVIDIA's driver"), "{error}");
        assert_eq!(Gpu::count().unwrap_err(), error);
    });
}

#[test]
fn a_driver_that_is_named_by_nothing_is_the_systems() {
    in_process(&[("QPAIR_LIBCUDA", "")], || {
        let counted = Gpu::count();
        assert!(!matches!(counted, Err(GpuError::OldDriver { version: 0, .. })), "{counted:?}");
    });
}

#[test]
fn a_driver_that_is_too_old_is_told_of_by_its_version() {
    let cuda = path(control::library_path().unwrap());
    in_process(&[("QPAIR_LIBCUDA", &cuda), ("FAKE_CUDA_DRIVER_VERSION", "11070")], || {
        let error = Gpu::open(0).unwrap_err();
        assert_eq!(error, GpuError::OldDriver { version: 11070, missing: None });
        assert!(error.to_string().contains("of CUDA 11.7; 11.8 is needed"), "{error}");
    });
}

#[test]
fn a_driver_without_a_function_is_told_of_by_its_name() {
    let no_cuda = path(qpair_fake_ibverbs::control::library_path().unwrap());
    in_process(&[("QPAIR_LIBCUDA", &no_cuda)], || {
        let error = Gpu::open(0).unwrap_err();
        assert_eq!(error, GpuError::OldDriver { version: 0, missing: Some("cuInit") });
        assert!(error.to_string().contains("has no cuInit"), "{error}");
    });
}

#[test]
fn a_driver_that_finds_no_gpu_is_an_error_that_says_where_to_look() {
    let cuda = path(control::library_path().unwrap());
    in_process(&[("QPAIR_LIBCUDA", &cuda), ("FAKE_CUDA_DEVICES", "0")], || {
        let error = Gpu::count().unwrap_err();
        assert!(matches!(error, GpuError::Driver { call: "cuInit", code, .. } if code == code::NO_DEVICE as i32));
        assert!(error.to_string().contains("CUDA_ERROR_NO_DEVICE; see `nvidia-smi -L`"), "{error}");
    });
}

// Attributes of a GPU, as `cuda.h` numbers them: CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, _GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS and
// _GPU_DIRECT_RDMA_WRITES_ORDERING.
const DMA_BUF: u32 = 124;
const FLUSH_OPTIONS: u32 = 117;
const WRITES_ORDERING: u32 = 118;
