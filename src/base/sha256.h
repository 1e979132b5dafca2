// Computes SHA-256 (FIPS 180-4), which names texts and tensors by their content, and HMAC (RFC
// 2104) of it, which proves that one knows a secret. OpenSSL does the work.
#pragma once

#include <string>
#include <string_view>

namespace distgrad {

// Returns 64 lower-case hexadecimal digits.
std::string sha256(std::string_view bytes);

// Returns the HMAC of the text under the key, as such digits.
std::string hmac_sha256(std::string_view key, std::string_view text);

// Takes the same time wherever they differ, so that nobody can guess a digest piece by piece.
bool are_same_digests(std::string_view a, std::string_view b);

}  // namespace distgrad
