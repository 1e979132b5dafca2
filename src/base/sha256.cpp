#include "base/sha256.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <array>

#include "base/error.h"

namespace distgrad {
namespace {

using Digest = std::array<unsigned char, 32>;

// Returns a context of our own, as the machine's configuration may change OpenSSL's default one.
OSSL_LIB_CTX* context() {
  static OSSL_LIB_CTX* const context = OSSL_LIB_CTX_new();
  return context;
}

std::string hexadecimal(const Digest& digest) {
  return fmt::format("{:02x}", fmt::join(digest, ""));
}

}  // namespace

std::string sha256(std::string_view bytes) {
  Digest digest;
  if (EVP_Q_digest(context(), "SHA256", nullptr, bytes.data(), bytes.size(), digest.data(),
                   nullptr) != 1)
    throw SystemError("OpenSSL gives no SHA-256");
  return hexadecimal(digest);
}

std::string hmac_sha256(std::string_view key, std::string_view text) {
  Digest digest;
  if (EVP_Q_mac(context(), "HMAC", nullptr, "SHA256", nullptr, key.data(), key.size(),
                reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(),
                digest.size(), nullptr) == nullptr)
    throw SystemError("OpenSSL gives no HMAC of SHA-256");
  return hexadecimal(digest);
}

bool are_same_digests(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace distgrad
