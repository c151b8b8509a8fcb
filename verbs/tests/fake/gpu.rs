//! GPU memory registered with a device of libibverbs: by a DMA-buf, on a CUDA driver in memory.

use qpair_fake_cuda::control;
use qpair_verbs::{Access, Gpu, MemoryError};

use crate::ground::{Ground, in_fake};

#[test]
fn a_dma_buf_is_registered_and_taken_back_before_the_memory_is_free() {
    in_fake(|| {
        let cuda = control::add_device().unwrap();
        let gpu = Gpu::open(cuda.ordinal() as usize).unwrap();
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
fn where_nothing_does_each_way_is_told_with_its_reason() {
    in_fake(|| {
        let cuda = control::add_device().unwrap();
        cuda.set_attribute(124, 0).unwrap();
        let gpu = Gpu::open(cuda.ordinal() as usize).unwrap();
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
        let cuda = control::add_device().unwrap();
        let gpu = Gpu::open(cuda.ordinal() as usize).unwrap();
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
