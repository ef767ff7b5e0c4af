#include "model/kv_pool.h"

#include <algorithm>
#include <cstring>

#include "core/checked.h"
#include "model/ops.h"
#include "tree/compaction.h"

namespace kdtree {

SlotAllocator::SlotAllocator(int64_t slots)
    : free_(static_cast<size_t>(slots)), holders_(static_cast<size_t>(slots), 0) {
  for (int64_t slot = 0; slot < slots; ++slot)
    free_[static_cast<size_t>(slots - 1 - slot)] = slot;
}

Result<std::vector<int64_t>> SlotAllocator::allocate(int64_t count) {
  if (count > free_slots()) {
    return fail(KDTREE_OUT_OF_MEMORY, "the KV pool has {} free slots of {}, expected at least {}",
                free_slots(), holders_.size(), count);
  }
  std::vector<int64_t> slots(free_.rbegin(), free_.rbegin() + count);
  free_.resize(free_.size() - static_cast<size_t>(count));
  for (const int64_t slot : slots)
    holders_[static_cast<size_t>(slot)] = 1;
  return slots;
}

void SlotAllocator::share(std::span<const int64_t> slots) {
  for (const int64_t slot : slots)
    holders_[static_cast<size_t>(slot)] += 1;
}

void SlotAllocator::release(std::span<const int64_t> slots) {
  for (const int64_t slot : slots) {
    if (--holders_[static_cast<size_t>(slot)] == 0) free_.push_back(slot);
  }
}

Result<KvPool> KvPool::create(int64_t layers, int64_t slots, int64_t width, DType dtype) {
  const auto row = checked_mul(width, dtype_size(dtype));
  const auto layer = row ? checked_mul(*row, slots) : row;
  const auto bytes = layer ? checked_mul(*layer, layers) : layer;
  Memory rows;
  if (bytes) rows = hwy::AllocateAligned<std::byte>(static_cast<size_t>(*bytes));
  if (rows == nullptr) {
    return fail(KDTREE_OUT_OF_MEMORY, "no memory for a KV pool of {} layers, {} slots of {} {}", layers,
                slots, width, dtype_name(dtype));
  }
  return KvPool(std::move(rows), layers, slots, width, dtype);
}

KvPool::KvPool(Memory rows, int64_t layers, int64_t slots, int64_t width, DType dtype)
    : rows_(std::move(rows)),
      layers_(layers),
      slots_(slots),
      row_bytes_(width * dtype_size(dtype)),
      dtype_(dtype),
      allocator_(slots) {}

void KvPool::write(int64_t layer_index, int64_t slot, std::span<const float> row) {
  std::byte* to = layer(layer_index) + slot * row_bytes_;
  if (dtype_ == DType::bf16) {
    best_ops_target().round_to_bf16(row.data(), static_cast<int64_t>(row.size()),
                                    reinterpret_cast<uint16_t*>(to));
  } else {
    std::memcpy(to, row.data(), row.size_bytes());
  }
}

void KvPool::move(std::span<const int64_t> from, std::span<const int64_t> to) {
  staging_.resize(from.size() * static_cast<size_t>(row_bytes_));
  for (int64_t l = 0; l < layers_; ++l)
    move_rows(layer(l), row_bytes_, row_bytes_, from, to, staging_);
}

}  // namespace kdtree
