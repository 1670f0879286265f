// Bulk copies between global and shared memory (sm_90 and later). Addresses and sizes are multiples of 16 bytes.
#pragma once
#include "common/hopper.cuh"

namespace scanjit::dev {

// Counted in bytes on `barrier`.
__device__ __forceinline__ void bulk_load(void* shared, const void* global, u32 bytes, u64* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)), "l"(global), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}
// As part of a group (store_box_commit, store_box_wait_read). The writers of `shared` have passed
// fence_async_proxy and a barrier.
__device__ __forceinline__ void bulk_store(void* global, const void* shared, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared_address(shared)),
               "r"(bytes) : "memory");
}

}  // namespace scanjit::dev
