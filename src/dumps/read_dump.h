// Finds and reads the files of a dump.
#pragma once

#include <span>
#include <string>

#include "dumps/dump.h"

namespace distgrad::dumps {

// Files, or folders of files: `.safetensors` and `.json`. Which rank a file is says its metadata,
// else its name: the number after "rank", else the last number (of several files). Parts of one
// whole, NAME-00001-of-00003, are put together. Throws UserError, with one line: no such file, a
// malformed one, the same rank twice, nothing in it.
Dump read_dump(std::span<const std::string> paths);

// "module.layers.0._orig_mod.weight" as the plain model calls it: without what DDP, FSDP,
// torch.compile and activation checkpointing put in.
std::string plain_name(const std::string& name);

}  // namespace distgrad::dumps
