// A whole file, mapped read-only: of a dump of many gigabytes only what is looked at is read.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace distgrad::dumps {

struct MappedFile {
  std::shared_ptr<const std::byte>
      data;  // null where the file is empty; unmapped with its last owner
  std::size_t size = 0;

  std::string_view text() const { return {reinterpret_cast<const char*>(data.get()), size}; }
};

// Throws UserError, naming the path: there is none, it is no file, it cannot be read.
MappedFile map_file(const std::string& path);

}  // namespace distgrad::dumps
