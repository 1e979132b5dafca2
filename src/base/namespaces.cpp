#include "base/namespaces.h"

#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace distgrad {
namespace {

bool write_text(const char* path, const char* text) {
  const int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const auto size = static_cast<ssize_t>(std::strlen(text));
  const bool written = write(fd, text, static_cast<std::size_t>(size)) == size;
  const int error = errno;
  close(fd);
  errno = error;
  return written;
}

bool write_map(const char* path, unsigned id) {
  char text[64];
  std::snprintf(text, sizeof text, "%u %u 1", id, id);
  return write_text(path, text);
}

bool try_in_child() {
  const pid_t child = fork();
  if (child == 0) _exit(enter_own_network() ? 0 : 1);
  int status = 1;
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return child > 0 && status == 0;
}

}  // namespace

const char* map_user(uid_t user, gid_t group) {
  if (!write_text("/proc/self/setgroups", "deny")) return "write /proc/self/setgroups";
  if (!write_map("/proc/self/uid_map", user)) return "write /proc/self/uid_map";
  return write_map("/proc/self/gid_map", group) ? nullptr : "write /proc/self/gid_map";
}

const char* raise_loopback() {
  const int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  const bool found = socket >= 0 && ioctl(socket, SIOCGIFFLAGS, &request) == 0;
  request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP | IFF_RUNNING);
  const bool raised = found && ioctl(socket, SIOCSIFFLAGS, &request) == 0;
  const int error = errno;
  if (socket >= 0) close(socket);
  errno = error;
  return raised ? nullptr : found ? "raise a loopback interface" : "find a loopback interface";
}

bool can_have_own_network() {
  static const bool offered = try_in_child();
  return offered;
}

// Avoids a user namespace for root: in a container root has few of its rights and would lose more
// there, such as that to write others' files.
bool enter_own_network() {
  const uid_t user = geteuid();
  const gid_t group = getegid();
  if (unshare(CLONE_NEWNET) == 0) return raise_loopback() == nullptr;
  return user != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0 && !map_user(user, group) &&
         !raise_loopback();
}

}  // namespace distgrad
