// Finds and reads the files of a dump.
#pragma once

#include <span>
#include <string>

#include "dumps/dump.h"

namespace distgrad::dumps {

// Reads files, or folders of files: `.safetensors` and `.json`. The rank is read from the file's
// metadata, else from its name: the number after "rank", else the last number (if there are several
// files). Parts of one whole, NAME-00001-of-00003, are joined. Throws a one-line UserError for a
// missing or malformed file, a rank that comes twice, or an empty dump.
Dump read_dump(std::span<const std::string> paths);

// Returns the plain model's name for "module.layers.0._orig_mod.weight": without what DDP, FSDP,
// torch.compile and activation checkpointing insert.
std::string plain_name(const std::string& name);

}  // namespace distgrad::dumps
