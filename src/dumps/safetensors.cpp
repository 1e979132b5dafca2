#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "dumps/dump_file.h"
#include "dumps/dump_metadata.h"
#include "dumps/mapped_file.h"
#include "dumps/strict_json.h"
#include "report/words.h"

namespace distgrad::dumps {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kLongestHeader = 100'000'000;  // the format's own limit
constexpr std::size_t kMostDims = 64;                  // torch's

struct DTypeName {
  std::string_view name;
  DType dtype;
};
constexpr std::array<DTypeName, 4> kNames = {{{"F64", DType::kFloat64},
                                              {"F32", DType::kFloat32},
                                              {"F16", DType::kFloat16},
                                              {"BF16", DType::kBFloat16}}};

struct Extent {
  std::uint64_t begin, end;
  std::string name;
};

class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::string& path)
      : shown_(for_terminal(path)), file_(map_file(path)) {
    dump_.file = path;
  }

  RankDump read() {
    const Json header = read_header();
    Json metadata = Json::object();
    for (const auto& [name, value] : header.items()) {
      if (name == "__metadata__")
        metadata = read_metadata(value);
      else
        add_tensor(name, value);
    }
    check_extents();
    apply_metadata(metadata, dump_);
    return std::move(dump_);
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    throw UserError(shown_ + ": " + fmt::format(format, std::forward<Args>(args)...));
  }

  Json read_header() {
    std::uint64_t length = 0;
    if (file_.size < sizeof(length)) refuse("not a safetensors file: {} bytes long", file_.size);
    std::memcpy(&length, file_.data.get(), sizeof(length));
    const std::uint64_t left = file_.size - sizeof(length);
    if (length > kLongestHeader)
      refuse("not a safetensors file: it says that its header has {} bytes", length);
    if (length > left)
      refuse("truncated: its header should have {} bytes, {} are there", length, left);
    data_ = file_.data.get() + sizeof(length) + length;
    data_size_ = left - length;
    Json header =
        parse_strict_json(file_.text().substr(sizeof(length), length), shown_ + ": header");
    if (!header.is_object()) refuse("header: not an object");
    return header;
  }

  // Reads values, which are text, and parses those that are JSON again.
  Json read_metadata(const Json& value) const {
    constexpr std::string_view kPrefix = "distgrad.";
    if (!value.is_object()) refuse("header: __metadata__ is not an object");
    Json metadata = Json::object();
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) refuse("header: __metadata__ holds something other than text");
      if (!key.starts_with(kPrefix)) continue;
      metadata[key.substr(kPrefix.size())] = parse_strict_json(
          text.get_ref<const std::string&>(), fmt::format("{}: {}", shown_, for_terminal(key)));
    }
    return metadata;
  }

  std::uint64_t unsigned_in(const Json& value, const std::string& name) const {
    if (!value.is_number_unsigned())
      refuse("header: {}: {} is no size or offset", name,
             for_terminal(value.dump(-1, ' ', true).substr(0, 40)));
    return value.get<std::uint64_t>();
  }

  DType dtype_in(const Json& value, const std::string& name) const {
    const std::string text = value.is_string() ? value.get<std::string>() : "";
    for (const DTypeName& known : kNames)
      if (known.name == text) return known.dtype;
    refuse("{} is {}; gradients are F64, F32, F16 or BF16", name,
           text.empty() ? "of no dtype" : for_terminal(text.substr(0, 40)));
  }

  void add_tensor(const std::string& name, const Json& value) {
    const std::string shown = for_terminal(name);
    if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") ||
        !value.contains("data_offsets") || !value["shape"].is_array() ||
        !value["data_offsets"].is_array() || value["data_offsets"].size() != 2)
      refuse("header: {} needs dtype, shape and two data_offsets", shown);
    if (value["shape"].size() > kMostDims)
      refuse("{} has {} dimensions, more than {}", shown, value["shape"].size(), kMostDims);
    DumpTensor tensor;
    tensor.dtype = dtype_in(value["dtype"], shown);
    const Extent extent{unsigned_in(value["data_offsets"][0], shown),
                        unsigned_in(value["data_offsets"][1], shown), shown};
    if (extent.begin > extent.end || extent.end > data_size_)
      refuse("{} lies at bytes {} to {}, but there are {}: truncated?", shown, extent.begin,
             extent.end, data_size_);
    std::uint64_t bytes = static_cast<std::uint64_t>(traits(tensor.dtype).bytes);
    bool empty = false;
    for (const Json& size : value["shape"]) {
      const std::uint64_t n = unsigned_in(size, shown);
      empty = empty || n == 0;
      if (n != 0 && (__builtin_mul_overflow(bytes, n, &bytes) || bytes > INT64_MAX))
        refuse("{} has a shape that nothing can have", shown);
      tensor.shape.push_back(static_cast<std::int64_t>(n));
    }
    if (empty) bytes = 0;
    if (bytes != extent.end - extent.begin)
      refuse("{} has {} bytes, its shape and dtype make {}", shown, extent.end - extent.begin,
             bytes);
    tensor.data = data_ + extent.begin;
    tensor.keeper = file_.data;
    extents_.push_back(extent);
    dump_.gradients[name].tensor = std::move(tensor);
  }

  // Checks that every byte belongs to exactly one tensor. Otherwise the file was not written by
  // what its header claims.
  void check_extents() {
    std::sort(extents_.begin(), extents_.end(), [](const Extent& a, const Extent& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    std::uint64_t next = 0;
    for (const Extent& e : extents_) {
      if (e.begin < next) refuse("{} overlaps another tensor", e.name);
      if (e.begin > next) refuse("bytes {} to {} belong to no tensor", next, e.begin);
      next = e.end;
    }
    if (next != data_size_) refuse("bytes {} to {} belong to no tensor", next, data_size_);
  }

  std::string shown_;
  MappedFile file_;
  const std::byte* data_ = nullptr;
  std::uint64_t data_size_ = 0;
  std::vector<Extent> extents_;
  RankDump dump_;
};

}  // namespace

RankDump read_safetensors(const std::string& path) { return SafetensorsReader(path).read(); }

}  // namespace distgrad::dumps
