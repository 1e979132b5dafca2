// libcuda.so.1 as a machine has it whose driver is there and finds no GPU.
extern "C" {
int cuInit(unsigned flags) { return flags == 0 ? 100 : 1; }  // CUDA_ERROR_NO_DEVICE
int cuDriverGetVersion(int* version) {
  *version = 13020;
  return 0;
}
}
