#include "rank/reused_memory.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <span>
#include <vector>

#include "base/whole_pages.h"

namespace distgrad {
namespace {

constexpr std::int64_t kElements = std::int64_t{1} << 18;  // 2 MiB of float64

at::Tensor block(std::int64_t times = 1) { return at::empty({times * kElements}, at::kDouble); }
std::size_t bytes(std::int64_t times) { return static_cast<std::size_t>(times * kElements) * 8; }

TEST(ReusedMemory, GivesABlockToTheNextTensorOfItsSize) {
  const ReusedMemory memory;
  at::Tensor x = block();
  const void* first = x.data_ptr();
  x.reset();
  EXPECT_EQ(ReusedMemory::kept_bytes(), bytes(1));
  const at::Tensor y = block(), z = block();
  EXPECT_EQ(y.data_ptr(), first);
  EXPECT_NE(z.data_ptr(), first);
  EXPECT_EQ(ReusedMemory::kept_bytes(), 0U);
}

TEST(ReusedMemory, NeverHoldsMoreThanTensorsOnceTook) {
  const ReusedMemory memory;
  { const at::Tensor a = block(3), b = block(2); }
  EXPECT_EQ(ReusedMemory::kept_bytes(), bytes(5));
  const at::Tensor one = block(1);  // of another size: together 6, where 5 was the most
  EXPECT_EQ(ReusedMemory::kept_bytes(), bytes(3));
  const at::Tensor two = block(2);
  EXPECT_EQ(ReusedMemory::kept_bytes(), 0U);
  const at::Tensor many = block(8);
  EXPECT_EQ(ReusedMemory::kept_bytes(), 0U);
}

TEST(ReusedMemory, KeepsNothingAfterwardsAndNothingSmall) {
  at::Tensor outlives;
  {
    const ReusedMemory memory;
    outlives = block();
    { const at::Tensor x = block(), small = at::empty({16}, at::kDouble); }
    EXPECT_EQ(ReusedMemory::kept_bytes(), bytes(1));
  }
  EXPECT_EQ(ReusedMemory::kept_bytes(), 0U);
  outlives.fill_(1);
  EXPECT_EQ(outlives.sum().item<double>(), static_cast<double>(kElements));
  outlives.reset();
  EXPECT_EQ(ReusedMemory::kept_bytes(), 0U);
}

// What another request leaves is not counted as what this one once took.
TEST(ReusedMemory, CountsByRequest) {
  {
    const ReusedMemory memory;
    const at::Tensor x = block(8);
  }
  const ReusedMemory memory;
  { const at::Tensor x = block(1); }
  const at::Tensor y = block(2);
  EXPECT_EQ(ReusedMemory::kept_bytes(), 0U);
}

// Nobody waits for the pages one by one.
TEST(ReusedMemory, HasItsPagesAtOnce) {
  const ReusedMemory memory;
  const at::Tensor x = block(33);
  const std::span<std::byte> pages = whole_pages(x.data_ptr(), bytes(33));
  ASSERT_FALSE(pages.empty());
  if (::madvise(pages.data(), page_bytes(), MADV_POPULATE_WRITE) != 0 && errno == EINVAL)
    GTEST_SKIP() << "this kernel has no MADV_POPULATE_WRITE, which came with Linux 5.14";
  std::vector<unsigned char> resident(pages.size() / page_bytes());
  ASSERT_EQ(::mincore(pages.data(), pages.size(), resident.data()), 0);
  EXPECT_THAT(resident, testing::Each(1));
}

TEST(ReusedMemory, KeepsWhatATensorHoldsThatGrows) {
  const ReusedMemory memory;
  at::Tensor x = at::ones({kElements}, at::kDouble);
  x.resize_({2 * kElements});
  EXPECT_EQ(x.narrow(0, 0, kElements).sum().item<double>(), static_cast<double>(kElements));
}

}  // namespace
}  // namespace distgrad
