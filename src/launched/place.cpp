#include "launched/place.h"

#include <fmt/format.h>

#include <cstdlib>

#include "base/error.h"
#include "base/sha256.h"
#include "launched/addresses.h"
#include "launched/agent.h"
#include "launched/secret.h"
#include "launched/world.h"
#include "protocol/payload.h"

namespace distgrad {
namespace {

Json place_of(const LaunchedWorld& world) {
  Json place{{"launcher", world.launcher},
             {"rank", world.rank},
             {"size", world.size},
             {"local_rank", world.local_rank},
             {"local_size", world.local_size},
             {"first_port", world.first_port},
             {"ports", kPortsTried},
             {"wait_s", world.wait_s},
             // The text makes this key differ from the ranks' proofs, which use the same secret.
             {"key", sha256(fmt::format("python {} {}", world.job, shared_secret()))}};
  if (world.rank == 0) {
    const Address address = address_to_listen_at(world.meeting_host, !world.is_on_one_host());
    place["listen"] = address.host();
    return place;
  }
  std::string error;
  place["addresses"] = Json::array();
  for (const Address& address : addresses_of(world.meeting_host, &error))
    place["addresses"].push_back(address.host());
  if (place["addresses"].empty())
    throw UserError(
        fmt::format("the host of rank 0, {}, is not known: {}", world.meeting_host, error));
  return place;
}

Json interface_of(const std::string& address) {
  std::string error;
  const std::vector<Address> found = addresses_of(address, &error);
  const std::string name = found.empty() ? "" : interface_with(found[0]);
  if (name.empty()) throw SystemError("no interface of this host has the address " + address);
  return name;
}

}  // namespace

int print_place(const std::vector<std::string>& arguments) {
  Json place;
  if (!arguments.empty())
    place = interface_of(arguments[0]);
  else if (const auto world = launched_world([](const char* name) { return std::getenv(name); }))
    place = place_of(*world);
  fmt::print("{}\n", place.dump());
  return 0;
}

}  // namespace distgrad
