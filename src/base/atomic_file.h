// Writes a whole file or leaves the old one: readers never see half of it, even if we are killed.
#pragma once

#include <string>
#include <string_view>

namespace distgrad {

// Writes to a temporary file in the same folder and renames it over `path`. "-" is standard output,
// on which nothing can be taken for a CI runner's command (visible_text.h). Writes directly to what
// exists and is not a regular file (a FIFO, /dev/stdout, /dev/null). Follows a symbolic link.
// Throws UserError, naming the path, if it cannot be written.
void write_file_atomically(const std::string& path, std::string_view text);

}  // namespace distgrad
