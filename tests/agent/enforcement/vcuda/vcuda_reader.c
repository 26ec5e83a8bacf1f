/*
 * Reads vcuda.config and pids.config as a C program with the structure does, and prints what
 * it found, a field a line. The offsets are those on which vcuda-controller relies.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct version {
  int major_;
  int minor_;
} __attribute__((packed, aligned(8)));

struct limits {
  char pod_uid[48];
  int limit;
  char occupied[4044];
  char container_name[4096];
  char bus_id[16];
  uint64_t gpu_memory;
  int utilization;
  int hard_limit;
  struct version driver;
  int enable;
} __attribute__((packed, aligned(8)));

_Static_assert(offsetof(struct limits, limit) == 48, "limit");
_Static_assert(offsetof(struct limits, occupied) == 52, "occupied");
_Static_assert(offsetof(struct limits, container_name) == 4096, "container_name");
_Static_assert(offsetof(struct limits, bus_id) == 8192, "bus_id");
_Static_assert(offsetof(struct limits, gpu_memory) == 8208, "gpu_memory");
_Static_assert(offsetof(struct limits, utilization) == 8216, "utilization");
_Static_assert(offsetof(struct limits, hard_limit) == 8220, "hard_limit");
_Static_assert(offsetof(struct limits, driver) == 8224, "driver.major");
_Static_assert(offsetof(struct limits, driver.minor_) == 8228, "driver.minor");
_Static_assert(offsetof(struct limits, enable) == 8232, "enable");
_Static_assert(sizeof(struct limits) == 8240, "size");

static int fail(const char *path, const char *why) {
  fprintf(stderr, "%s: %s\n", path, why);
  return 1;
}

int main(int argc, char **argv) {
  struct limits found;
  FILE *file;
  size_t i;
  int pid;

  if (argc != 3) {
    return fail(argv[0], "usage: vcuda_reader VCUDA.CONFIG PIDS.CONFIG");
  }
  file = fopen(argv[1], "rb");
  if (file == NULL) {
    return fail(argv[1], "cannot be opened");
  }
  if (fread(&found, sizeof found, 1, file) != 1 || fgetc(file) != EOF) {
    return fail(argv[1], "is not as long as the structure");
  }
  fclose(file);
  for (i = 0; i < sizeof found.occupied; i++) {
    if (found.occupied[i] != 0) {
      return fail(argv[1], "is not zero where it is unused");
    }
  }
  printf("pod_uid=%s\nlimit=%d\ncontainer_name=%s\nbus_id=%s\n", found.pod_uid, found.limit,
         found.container_name, found.bus_id);
  printf("gpu_memory=%" PRIu64 "\nutilization=%d\nhard_limit=%d\n", found.gpu_memory,
         found.utilization, found.hard_limit);
  printf("driver=%d.%d\nenable=%d\n", found.driver.major_, found.driver.minor_, found.enable);

  file = fopen(argv[2], "rb");
  if (file == NULL) {
    return fail(argv[2], "cannot be opened");
  }
  while (fread(&pid, sizeof pid, 1, file) == 1) {
    printf("pid=%d\n", pid);
  }
  fclose(file);
  return 0;
}
