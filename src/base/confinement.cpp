#include "base/confinement.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <initializer_list>

#include "base/syscall_filter.h"

namespace distgrad {
namespace {

// Repeats a struct of linux/mount.h, which clashes with the C library's header.
struct MountAttributes {
  std::uint64_t set, clear, propagation, user_namespace;
};
constexpr long kMountSetattrCall = 442;  // on all architectures; some headers lack it
constexpr std::uint64_t kReadOnly = 1, kNoDevices = 4;
constexpr unsigned kRecursive = 0x8000;

bool change_mount(const char* path, unsigned flags, MountAttributes attributes) {
  return syscall(kMountSetattrCall, AT_FDCWD, path, flags, &attributes, sizeof attributes) == 0;
}

// Mounts the device upon itself, so that it may have other attributes than what it lies in. Does
// nothing where there is no such device.
bool keep_device(const char* path) {
  if (access(path, F_OK) != 0) return true;
  return mount(path, path, nullptr, MS_BIND, nullptr) == 0 &&
         change_mount(path, 0,
                      {.set = 0, .clear = kNoDevices, .propagation = 0, .user_namespace = 0});
}

bool keep_devices() {
  for (const char* path : {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom",
                           "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"})
    if (!keep_device(path)) return false;
  constexpr int kMostGpus = 32;
  for (int i = 0; i < kMostGpus; ++i) {
    char path[32];
    std::snprintf(path, sizeof path, "/dev/nvidia%d", i);
    if (!keep_device(path)) return false;
  }
  return true;
}

// Gives up all capabilities. Without the two lines at the beginning, a process of root's would get
// them back with exec.
bool give_up_capabilities() {
  for (int capability = 0; prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0; ++capability) {
  }
  if (errno != EINVAL || prctl(PR_SET_SECUREBITS, SECBIT_NOROOT | SECBIT_NOROOT_LOCKED) != 0)
    return false;
  if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0) return false;
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  const __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3]{};
  return syscall(SYS_capset, &header, none) == 0;
}

}  // namespace

const char* confine() {
  if (unshare(CLONE_NEWNS) != 0) return "make a mount namespace";
  if (!change_mount("/", kRecursive,
                    {.set = kReadOnly | kNoDevices,
                     .clear = 0,
                     .propagation = MS_PRIVATE,
                     .user_namespace = 0}))
    return "make all that is mounted read-only (Linux 5.12 can)";
  if (!keep_devices()) return "keep /dev/null";
  if (mount("tmpfs", kPrivateFolder, "tmpfs", MS_NOSUID | MS_NODEV, "size=25%,mode=1777") != 0)
    return "mount a private /dev/shm";
  if (!give_up_capabilities()) return "give up capabilities";
  return filter_system_calls() ? nullptr : "filter system calls (seccomp)";
}

}  // namespace distgrad
