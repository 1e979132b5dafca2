#include "rank/reused_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/whole_pages.h"
#include "rank/side_by_side.h"

namespace distgrad {
namespace {

constexpr std::size_t kWorthAThread = std::size_t{4} << 20;  // bytes

// A virtual machine gives free memory back to its host in pieces as large as huge pages, and
// touching such a piece again costs a fault of the host for each small page of it. Small pages come
// from what was used a moment ago. With huge pages 4 ranks x 64 MiB take 0.9 to 1.0 s right after
// another run and 1.7 to 2.4 s a few seconds later; with small pages they take 1.2 to 1.4 s in both
// cases.
void use_small_pages(std::span<std::byte> pages) {
  ::madvise(pages.data(), pages.size(), MADV_NOHUGEPAGE);
}

// Makes the kernel clear the pages now, on several cores; otherwise the one thread that fills the
// tensor waits for each page. Kernels before 5.14 cannot do it. If memory is short, touching it
// will say so.
void populate(std::span<std::byte> pages) {
  const std::size_t page = page_bytes();
  side_by_side(pages.size() / page, kWorthAThread / page,
               [&](std::size_t first, std::size_t count) {
                 ::madvise(pages.data() + first * page, count * page, MADV_POPULATE_WRITE);
               });
}

class KeepingAllocator final : public c10::Allocator {
 public:
  explicit KeepingAllocator(c10::Allocator* inner) : inner_(inner) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes < kLargeBlock) return inner_->allocate(bytes);
    if (void* kept = taken(bytes)) return pointer(kept);
    c10::DataPtr fresh = inner_->allocate(bytes);
    void* block = fresh.get();
    if (fresh.get_context() != block) return fresh;  // it is freed in a way of its own
    const std::span<std::byte> pages = whole_pages(block, bytes);
    use_small_pages(pages);
    populate(pages);
    {
      const std::lock_guard lock(mutex_);
      sizes_.emplace(block, bytes);
      live_ += bytes;
      most_ = std::max(most_, live_);
    }
    fresh.release_context();
    return pointer(block);
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  void keep() {
    const std::lock_guard lock(mutex_);
    keeps_ = true;
    most_ = live_;
  }

  void forget() {
    const std::lock_guard lock(mutex_);
    keeps_ = false;
    shrink(0);
  }

  std::size_t kept_bytes() {
    const std::lock_guard lock(mutex_);
    return kept_bytes_;
  }

 private:
  c10::DataPtr pointer(void* block) {
    return {block, block, &release, c10::Device(c10::DeviceType::CPU)};
  }

  // Returns null if a fresh block is needed, after making room for it.
  void* taken(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto same = std::find_if(kept_.rbegin(), kept_.rend(),
                                   [&](const Block& b) { return b.bytes == bytes; });
    if (same == kept_.rend()) {
      const std::size_t needed = live_ + bytes;
      shrink(most_ > needed ? most_ - needed : 0);
      return nullptr;
    }
    void* block = same->start;
    kept_.erase(std::next(same).base());
    kept_bytes_ -= bytes;
    live_ += bytes;
    return block;
  }

  static void release(void* block);

  void free(void* block) {
    if (block == nullptr) return;
    const std::lock_guard lock(mutex_);
    const auto known = sizes_.find(block);
    if (known == sizes_.end()) return inner_->raw_deleter()(block);
    live_ -= known->second;
    kept_bytes_ += known->second;
    kept_.push_back({block, known->second});
    if (!keeps_) shrink(0);
  }

  // Frees the oldest blocks first.
  void shrink(std::size_t bytes) {
    std::size_t gone = 0;
    for (; kept_bytes_ > bytes; ++gone) {
      kept_bytes_ -= kept_[gone].bytes;
      sizes_.erase(kept_[gone].start);
      inner_->raw_deleter()(kept_[gone].start);
    }
    kept_.erase(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(gone));
  }

  struct Block {
    void* start;
    std::size_t bytes;
  };

  c10::Allocator* inner_;
  std::mutex mutex_;                              // threads of a backend free tensors, too
  std::unordered_map<void*, std::size_t> sizes_;  // of all blocks that came from here
  std::vector<Block> kept_;
  bool keeps_ = false;
  std::size_t live_ = 0, most_ = 0, kept_bytes_ = 0;
};

// It is never destroyed, since static tensors may be freed later.
KeepingAllocator& allocator() {
  static auto* one = [] {
    auto* made = new KeepingAllocator(c10::GetCPUAllocator());
    c10::SetCPUAllocator(made, /*priority=*/1);
    return made;
  }();
  return *one;
}

void KeepingAllocator::release(void* block) { allocator().free(block); }

}  // namespace

ReusedMemory::ReusedMemory() { allocator().keep(); }
ReusedMemory::~ReusedMemory() { allocator().forget(); }
std::size_t ReusedMemory::kept_bytes() { return allocator().kept_bytes(); }

}  // namespace distgrad
