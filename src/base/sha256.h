// SHA-256 (FIPS 180-4), for naming texts and tensors by what is in them, and HMAC (RFC 2104) of it,
// for proving that one knows a secret; OpenSSL computes both.
#pragma once

#include <string>
#include <string_view>

namespace distgrad {

// 64 lower-case hexadecimal digits.
std::string sha256(std::string_view bytes);

// The same of a text under a key.
std::string hmac_sha256(std::string_view key, std::string_view text);

// Takes the same time wherever they differ, so that nobody can guess one piece by piece.
bool are_same_digests(std::string_view a, std::string_view b);

}  // namespace distgrad
