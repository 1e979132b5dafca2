#include "base/syscall_filter.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace distgrad {
namespace {

#if defined(__x86_64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr std::uint32_t kArchitecture = 0;  // none, so the filter is refused
#endif

// Marks, on x86_64, the calls of its 32-bit variant x32, which numbers the same calls differently.
constexpr std::uint32_t kForeignNumbers = 0x40000000;

constexpr std::array kRefused = {
    // Other processes' memory, descriptors and calls
    SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_process_madvise, SYS_kcmp,
    SYS_pidfd_getfd, SYS_pidfd_send_signal,
    // What is mounted, and files besides their paths
    SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_open_tree, SYS_move_mount, SYS_fsopen,
    SYS_fsconfig, SYS_fsmount, SYS_fspick, SYS_open_by_handle_at, SYS_fanotify_init,
    // The user's keys
    SYS_keyctl, SYS_add_key, SYS_request_key,
    // Parts of the kernel that are large, and seldom used
    SYS_bpf, SYS_perf_event_open, SYS_userfaultfd, SYS_io_uring_setup, SYS_io_uring_enter,
    SYS_io_uring_register,
    // The machine
    SYS_kexec_load, SYS_kexec_file_load, SYS_init_module, SYS_finit_module, SYS_delete_module,
    SYS_reboot, SYS_swapon, SYS_swapoff, SYS_acct, SYS_syslog, SYS_settimeofday, SYS_clock_settime,
    SYS_sethostname, SYS_setdomainname,
    // Other namespaces
    SYS_setns};
constexpr std::uint32_t kMountSetattr = 442;  // on all architectures; some headers lack it

constexpr std::uint32_t kNewNamespaces = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS |
                                         CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;

// Writes a program for the kernel's small machine, which has one register and only jumps forward.
class Filter {
 public:
  constexpr void load(std::size_t offset) {
    add(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset));
  }
  constexpr void load_argument(unsigned index) {  // its lower half, on little-endian machines
    load(offsetof(seccomp_data, args) + index * sizeof(std::uint64_t));
  }
  constexpr void load_number() { load(offsetof(seccomp_data, nr)); }
  constexpr void fail(int error) {
    add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error));
  }
  constexpr void allow() { add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW); }

  // Skips so many instructions unless (or where) the register has the value.
  constexpr void unless_equal(std::uint32_t value, std::uint8_t skipped) {
    add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skipped);
  }
  constexpr void where_equal(std::uint32_t value, std::uint8_t skipped) {
    add(BPF_JMP | BPF_JEQ | BPF_K, value, skipped, 0);
  }
  constexpr void unless_at_least(std::uint32_t value, std::uint8_t skipped) {
    add(BPF_JMP | BPF_JGE | BPF_K, value, 0, skipped);
  }
  constexpr void unless_any_bit(std::uint32_t bits, std::uint8_t skipped) {
    add(BPF_JMP | BPF_JSET | BPF_K, bits, 0, skipped);
  }

  sock_fprog program() { return {static_cast<unsigned short>(size_), code_.data()}; }

 private:
  constexpr void add(int code, std::uint32_t value, std::uint8_t where = 0,
                     std::uint8_t otherwise = 0) {
    code_[size_++] = {static_cast<std::uint16_t>(code), where, otherwise, value};
  }

  std::array<sock_filter, 224> code_{};
  std::size_t size_ = 0;
};

// Expects the call's number in the register, and leaves it there.
constexpr void refuse(Filter& filter, std::uint32_t number) {
  filter.unless_equal(number, 1);
  filter.fail(EPERM);
}

constexpr void refuse_namespaces(Filter& filter, std::uint32_t number) {
  filter.unless_equal(number, 4);
  filter.load_argument(0);
  filter.unless_any_bit(kNewNamespaces, 1);
  filter.fail(EPERM);
  filter.load_number();
}

// Refuses Unix sockets, which belong to no network: behind them may be the user's D-Bus, Docker or
// tmux, which start programs outside.
constexpr void refuse_sockets_but_of_the_network(Filter& filter) {
  filter.unless_equal(SYS_socket, 6);
  filter.load_argument(0);
  filter.where_equal(AF_INET, 3);
  filter.where_equal(AF_INET6, 2);
  filter.where_equal(AF_NETLINK, 1);
  filter.fail(EPERM);
  filter.load_number();
}

// Refuses two calls that put words into a terminal as if the user had typed them.
constexpr void refuse_typing(Filter& filter) {
  filter.unless_equal(SYS_ioctl, 5);
  filter.load_argument(1);
  filter.where_equal(TIOCSTI, 1);
  filter.unless_equal(TIOCLINUX, 1);
  filter.fail(EPERM);
  filter.load_number();
}

// Refuses calls on the driver, which is process 1 of the sandbox; -1 means all of its processes.
constexpr void refuse_acts_on_the_driver(Filter& filter) {
  for (const long number : {SYS_kill, SYS_tkill, SYS_tgkill, SYS_rt_sigqueueinfo,
                            SYS_rt_tgsigqueueinfo, SYS_prlimit64}) {
    filter.unless_equal(static_cast<std::uint32_t>(number), 5);
    filter.load_argument(0);
    filter.where_equal(1, 1);
    filter.unless_equal(~std::uint32_t{0}, 1);
    filter.fail(EPERM);
    filter.load_number();
  }
}

constexpr Filter make_filter() {
  Filter filter;
  filter.load(offsetof(seccomp_data, arch));
  filter.where_equal(kArchitecture, 1);
  filter.fail(EPERM);
  filter.load_number();
#if defined(__x86_64__)
  filter.unless_at_least(kForeignNumbers, 1);
  filter.fail(EPERM);
#endif
  for (const long number : kRefused) refuse(filter, static_cast<std::uint32_t>(number));
  refuse(filter, kMountSetattr);
  refuse_namespaces(filter, SYS_clone);
  refuse_namespaces(filter, SYS_unshare);
  refuse_sockets_but_of_the_network(filter);
  refuse_typing(filter);
  refuse_acts_on_the_driver(filter);
  // A filter cannot see clone3's flags, which lie in memory; without it the C library uses clone.
  filter.unless_equal(SYS_clone3, 1);
  filter.fail(ENOSYS);
  filter.allow();
  return filter;
}

}  // namespace

bool filter_system_calls() {
  if (kArchitecture == 0) {
    errno = ENOSYS;
    return false;
  }
  static Filter filter = make_filter();
  const sock_fprog program = filter.program();
  // The mitigation against speculation would slow down all code, and protects nothing that the code
  // cannot read anyway.
  return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, &program) ==
         0;
}

}  // namespace distgrad
