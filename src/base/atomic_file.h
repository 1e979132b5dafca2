// Writes a whole file, or leaves the old one: readers never see half of it, whenever we are killed.
#pragma once

#include <string>
#include <string_view>

namespace distgrad {

// Writes to a temporary file in the same folder and renames it over `path`. "-" is standard output,
// where nothing is a runner's command (visible_text.h); what exists and is not a regular file (a
// FIFO, /dev/stdout, /dev/null) is written to directly. A symbolic link is followed. Throws
// UserError, naming the path, where it cannot be written.
void write_file_atomically(const std::string& path, std::string_view text);

}  // namespace distgrad
