// Maps a whole file read-only, so that of many gigabytes only what is looked at is read.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace distgrad::dumps {

struct MappedFile {
  // Points to the content, or is null if the file is empty. The last owner unmaps it.
  std::shared_ptr<const std::byte> data;
  std::size_t size = 0;

  std::string_view text() const { return {reinterpret_cast<const char*>(data.get()), size}; }
};

// Throws a UserError that names the path if the file is missing, is no file, or cannot be read.
MappedFile map_file(const std::string& path);

}  // namespace distgrad::dumps
