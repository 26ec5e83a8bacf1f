/*
 * A stand-in for libnvidia-ml.so.1 that plays a script.
 *
 * Only what the agent calls is here, by NVML's documented signatures and structures. The
 * script is the text file that $NVML_STUB names. It is read again in every call, so a test
 * changes the node while the agent looks at it. One fact a line:
 *
 *   driver VERSION
 *   cards COUNT
 *   card I uuid|name TEXT
 *   card I minor|numa|ecc|action|mig|events|pending|failed NUMBER    (events: a mask)
 *   card I memory|reserved BYTES                     (reserved: of these, kept by the driver)
 *   card I pci DOMAIN BUS DEVICE
 *   card I capability MAJOR MINOR                    (missing: not told)
 *   card I gpu|used NUMBER                           (percent of the time; bytes in use)
 *   process I C|G PID BYTES                          (computes or draws; -1: not told)
 *   sample I PID PERCENT AGE                         (AGE: microseconds before now)
 *   nvlink I LINK active|inactive gpu|switch|unknown DOMAIN BUS DEVICE
 *   level I J LEVEL                                  (nvmlGpuTopologyLevel_t)
 *   card I instances COUNT                           (most MIG instances: their indices)
 *   instance I J GI CI UUID                          (MIG instance J of card I; a card's words
 *                                                     for it: of card 100 + 10 * I + J)
 *   fail FUNCTION I CODE                             (I: a card or instance, or * for any)
 *   event NUMBER I TYPE DATA [GI]                    (told once, in order of NUMBER,
 *                                                     to programs that were there before)
 *
 * Samples are given whatever time they are asked from: drivers leave stale ones in their answers.
 *
 * What NVML does not support with a handle of an instance is not supported here either: PCI, minor
 * number, utilization, events, health. Of a card in MIG mode neither memory nor processes are told,
 * as to a program without privileges.
 *
 * Built with -DOLD_DRIVER it lacks what drivers before R460 lack.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
  SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
  INSUFFICIENT_SIZE = 7, TIMEOUT = 10, UNKNOWN = 999
};
enum { MAX_CARDS = 16, MAX_INSTANCES = 10, LINE = 512, MAX_PROCESSES = 1024 };
enum { NO_PERMISSION = 4, FIRST_INSTANCE = 100 };

typedef struct { int index; } Card;
typedef Card *Device;
typedef struct { int registered; } *EventSet;

typedef struct {
  char busIdLegacy[16];
  unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
  char busId[32];
} PciInfo;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory_v2;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct {
  unsigned pid;
  unsigned long long usedGpuMemory;
  unsigned gpuInstanceId, computeInstanceId;
} ProcessInfo;
typedef struct {
  unsigned pid;
  unsigned long long timeStamp;
  unsigned smUtil, memUtil, encUtil, decUtil;
} Sample;
typedef struct {
  Device device;
  unsigned long long eventType, eventData;
  unsigned gpuInstanceId, computeInstanceId;
} EventData;
typedef union { double d; unsigned ui; unsigned long ul; unsigned long long ull; } Value;
typedef struct {
  unsigned fieldId, scopeId;
  long long timestamp, latencyUsec;
  unsigned valueType, nvmlReturn;
  Value value;
} FieldValue;

static Card cards[MAX_CARDS], instances[MAX_CARDS * MAX_INSTANCES];
static int sessions;      /* nvmlInit calls without their nvmlShutdown */
static int sets;          /* event sets that were not freed */
static int last_event;
static int started;       /* whether nvmlInit was called before */
static unsigned long long registered[MAX_CARDS];

int stub_sessions(void) { return sessions; }
int stub_sets(void) { return sets; }

/* Find the line that starts with the words of key; give what follows. */
static int find(const char *key, char *rest) {
  const char *path = getenv("NVML_STUB");
  FILE *script = path ? fopen(path, "r") : NULL;
  char line[LINE];
  size_t length = strlen(key);
  int found = 0;
  if (!script) return 0;
  while (!found && fgets(line, sizeof line, script)) {
    line[strcspn(line, "\n")] = 0;
    if (!strncmp(line, key, length) && (line[length] == ' ' || !line[length])) {
      strcpy(rest, line[length] ? line + length + 1 : "");
      found = 1;
    }
  }
  fclose(script);
  return found;
}

/* Find all lines that start with the words of key; give what follows each, and how many. */
static unsigned all(const char *key, char rests[][64]) {
  const char *path = getenv("NVML_STUB");
  FILE *script = path ? fopen(path, "r") : NULL;
  char line[LINE];
  size_t length = strlen(key);
  unsigned found = 0;
  if (!script) return 0;
  while (found < MAX_PROCESSES && fgets(line, sizeof line, script)) {
    line[strcspn(line, "\n")] = 0;
    if (!strncmp(line, key, length) && line[length] == ' ')
      snprintf(rests[found++], 64, "%.63s", line + length + 1);
  }
  fclose(script);
  return found;
}

static int failure(const char *function, Device device) {
  char key[LINE], rest[LINE];
  if (device) {
    snprintf(key, sizeof key, "fail %s %d", function, device->index);
    if (find(key, rest)) return atoi(rest);
  }
  snprintf(key, sizeof key, "fail %s *", function);
  if (find(key, rest)) return atoi(rest);
  return sessions ? SUCCESS : UNINITIALIZED;
}

static int is_instance(Device device) {
  return device >= instances && device < instances + MAX_CARDS * MAX_INSTANCES;
}

static int is_card(Device device) {
  return (device >= cards && device < cards + MAX_CARDS) || is_instance(device);
}

/* Find an instance: its IDs, and its UUID. */
static int find_instance(Device device, unsigned *gpu, unsigned *compute, char *uuid) {
  char key[LINE], rest[LINE];
  int place = device->index - FIRST_INSTANCE;
  snprintf(key, sizeof key, "instance %d %d", place / MAX_INSTANCES, place % MAX_INSTANCES);
  return find(key, rest) && sscanf(rest, "%u %u %79s", gpu, compute, uuid) == 3;
}

#define CHECK_ANY(device)                              \
  do {                                                 \
    int code;                                          \
    if (!is_card(device)) return INVALID_ARGUMENT;     \
    if ((code = failure(__func__, device))) return code; \
  } while (0)

/* Of a function that knows no instances. */
#define CHECK(device)                                  \
  do {                                                 \
    CHECK_ANY(device);                                 \
    if (is_instance(device)) return NOT_SUPPORTED;     \
  } while (0)

/* Of a function that tells an unprivileged program nothing of a card in MIG mode. */
#define CHECK_PART(device)                             \
  do {                                                 \
    CHECK_ANY(device);                                 \
    if (in_mig_mode(device)) return NO_PERMISSION;     \
  } while (0)

static int attribute(Device device, const char *name, char *rest) {
  char key[LINE];
  snprintf(key, sizeof key, "card %d %s", device->index, name);
  return find(key, rest);
}

static int text(Device device, const char *name, char *out, unsigned size) {
  char rest[LINE];
  if (!attribute(device, name, rest)) return NOT_SUPPORTED;
  if (strlen(rest) >= size) return INSUFFICIENT_SIZE;
  strcpy(out, rest);
  return SUCCESS;
}

static int number(Device device, const char *name, unsigned long long *out) {
  char rest[LINE];
  if (!attribute(device, name, rest)) return NOT_SUPPORTED;
  *out = strtoull(rest, NULL, 0);
  return SUCCESS;
}

static int small(Device device, const char *name, unsigned *out) {
  unsigned long long value;
  int code = number(device, name, &value);
  if (!code) *out = (unsigned)value;
  return code;
}

static int in_mig_mode(Device device) {
  unsigned mode = 0;
  return !is_instance(device) && !small(device, "mig", &mode) && mode;
}

static unsigned count(void) {
  char rest[LINE];
  return find("cards", rest) ? (unsigned)atoi(rest) : 0;
}

static int pci(const char *address, PciInfo *out) {
  memset(out, 0, sizeof *out);
  if (sscanf(address, "%x %x %x", &out->domain, &out->bus, &out->device) != 3) return UNKNOWN;
  snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "%04X:%02X:%02X.0", out->domain & 0xffff,
           out->bus & 0xff, out->device & 0xff);
  snprintf(out->busId, sizeof out->busId, "%08X:%02X:%02X.0", out->domain, out->bus, out->device);
  return SUCCESS;
}

/* --- session and system --- */

int nvmlInitWithFlags(unsigned flags) {
  char rest[LINE];
  (void)flags;
  if (find("fail nvmlInitWithFlags *", rest)) return atoi(rest);
  for (int i = 0; i < MAX_CARDS; i++) cards[i].index = i;
  for (int i = 0; i < MAX_CARDS * MAX_INSTANCES; i++) instances[i].index = FIRST_INSTANCE + i;
  if (!started) { /* the driver tells a program nothing of what was before it */
    char key[LINE];
    do snprintf(key, sizeof key, "event %d", ++last_event);
    while (find(key, rest));
    last_event--;
    started = 1;
  }
  sessions++;
  return SUCCESS;
}

int nvmlShutdown(void) {
  int code = failure(__func__, NULL);
  if (sessions) sessions--;
  return code;
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
  char rest[LINE];
  int code = failure(__func__, NULL);
  if (code) return code;
  if (!find("driver", rest)) return NOT_SUPPORTED;
  if (strlen(rest) >= length) return INSUFFICIENT_SIZE;
  strcpy(version, rest);
  return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *out) {
  int code = failure(__func__, NULL);
  if (!code) *out = count();
  return code;
}

const char *nvmlErrorString(int code) {
  return code == 4242 ? "a text of the library" : "some error";
}

/* --- cards --- */

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *out) {
  if (index >= count() || index >= MAX_CARDS) return INVALID_ARGUMENT;
  CHECK(&cards[index]);
  *out = &cards[index];
  return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device *out) {
  char rest[LINE];
  for (unsigned i = 0; i < count(); i++)
    if (attribute(&cards[i], "uuid", rest) && !strcmp(rest, uuid)) {
      CHECK(&cards[i]);
      *out = &cards[i];
      return SUCCESS;
    }
  for (int i = 0; i < MAX_CARDS * MAX_INSTANCES; i++) {
    unsigned gpu, compute;
    if (find_instance(&instances[i], &gpu, &compute, rest) && !strcmp(rest, uuid)) {
      CHECK_ANY(&instances[i]);
      *out = &instances[i];
      return SUCCESS;
    }
  }
  return sessions ? NOT_FOUND : UNINITIALIZED;
}

int nvmlDeviceGetUUID(Device device, char *out, unsigned size) {
  char rest[LINE];
  unsigned gpu, compute;
  CHECK_ANY(device);
  if (!is_instance(device)) return text(device, "uuid", out, size);
  if (!find_instance(device, &gpu, &compute, rest)) return NOT_FOUND;
  snprintf(out, size, "%s", rest);
  return SUCCESS;
}

int nvmlDeviceGetName(Device device, char *out, unsigned size) {
  CHECK_ANY(device);
  return text(device, "name", out, size);
}

int nvmlDeviceGetMinorNumber(Device device, unsigned *out) {
  CHECK(device);
  return small(device, "minor", out);
}

int nvmlDeviceGetMemoryInfo(Device device, Memory *out) {
  CHECK_PART(device);
  if (number(device, "used", &out->used)) out->used = 1 << 20;
  int code = number(device, "memory", &out->total);
  out->free = out->total - out->used;
  return code;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetMemoryInfo_v2(Device device, Memory_v2 *out) {
  CHECK_PART(device);
  if (out->version != (sizeof *out | 2 << 24)) return INVALID_ARGUMENT;
  if (number(device, "used", &out->used)) out->used = 1 << 20;
  if (number(device, "reserved", &out->reserved)) out->reserved = 0;
  int code = number(device, "memory", &out->total);
  out->free = out->total - out->used - out->reserved;
  return code;
}
#endif

int nvmlDeviceGetPciInfo_v3(Device device, PciInfo *out) {
  char rest[LINE];
  CHECK(device);
  return attribute(device, "pci", rest) ? pci(rest, out) : NOT_SUPPORTED;
}

int nvmlDeviceGetMigMode(Device device, unsigned *current, unsigned *pending) {
  CHECK(device);
  int code = small(device, "mig", current);
  *pending = *current;
  return code;
}

int nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor) {
  char rest[LINE];
  CHECK(device);
  if (!attribute(device, "capability", rest)) return NOT_SUPPORTED;
  return sscanf(rest, "%d %d", major, minor) == 2 ? SUCCESS : UNKNOWN;
}

/* --- MIG instances --- */

int nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned *out) {
  CHECK(device);
  if (small(device, "instances", out)) *out = 0;
  return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device *out) {
  char rest[LINE];
  unsigned gpu, compute;
  CHECK(device);
  if (index >= MAX_INSTANCES) return INVALID_ARGUMENT;
  *out = &instances[device->index * MAX_INSTANCES + (int)index];
  return find_instance(*out, &gpu, &compute, rest) ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device device, Device *out) {
  CHECK_ANY(device);
  if (!is_instance(device)) return INVALID_ARGUMENT;
  *out = &cards[(device->index - FIRST_INSTANCE) / MAX_INSTANCES];
  return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(Device device, unsigned *out) {
  char rest[LINE];
  unsigned compute;
  CHECK_ANY(device);
  if (!is_instance(device)) return NOT_SUPPORTED;
  return find_instance(device, out, &compute, rest) ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetComputeInstanceId(Device device, unsigned *out) {
  char rest[LINE];
  unsigned gpu;
  CHECK_ANY(device);
  if (!is_instance(device)) return NOT_SUPPORTED;
  return find_instance(device, &gpu, out, rest) ? SUCCESS : NOT_FOUND;
}

/* --- links --- */

int nvmlDeviceGetTopologyCommonAncestor(Device one, Device other, unsigned *level) {
  char key[LINE], rest[LINE];
  if (!is_card(other)) return INVALID_ARGUMENT;
  CHECK(one);
  snprintf(key, sizeof key, "level %d %d", one->index, other->index);
  if (!find(key, rest)) return NOT_SUPPORTED;
  *level = (unsigned)atoi(rest);
  return SUCCESS;
}

/* "active gpu 0 7 0" split into words; the address stays one. */
static int link_of(Device device, unsigned link, char *state, char *kind, char *address) {
  char key[LINE], rest[LINE];
  snprintf(key, sizeof key, "nvlink %d %u", device->index, link);
  if (!find(key, rest)) return NOT_SUPPORTED;
  return sscanf(rest, "%15s %15s %63[^\n]", state, kind, address) == 3 ? SUCCESS : UNKNOWN;
}

int nvmlDeviceGetNvLinkState(Device device, unsigned link, unsigned *active) {
  char state[16], kind[16], address[64];
  CHECK(device);
  int code = link_of(device, link, state, kind, address);
  if (!code) *active = !strcmp(state, "active");
  return code;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device device, unsigned link, PciInfo *out) {
  char state[16], kind[16], address[64];
  CHECK(device);
  int code = link_of(device, link, state, kind, address);
  return code ? code : pci(address, out);
}

#ifndef OLD_DRIVER
int nvmlDeviceGetNvLinkRemoteDeviceType(Device device, unsigned link, unsigned *out) {
  char state[16], kind[16], address[64];
  CHECK(device);
  int code = link_of(device, link, state, kind, address);
  if (!code) *out = !strcmp(kind, "gpu") ? 0 : !strcmp(kind, "switch") ? 2 : 0xff;
  return code;
}

int nvmlDeviceGetMemoryAffinity(Device device, unsigned size, unsigned long *nodes, unsigned scope) {
  unsigned node;
  CHECK(device);
  if (scope != 0 || size == 0) return INVALID_ARGUMENT;
  int code = small(device, "numa", &node);
  memset(nodes, 0, size * sizeof *nodes);
  if (!code) nodes[node / 64] = 1UL << (node % 64);
  return code;
}

int nvmlDeviceGetRemappedRows(Device device, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failed) {
  CHECK(device);
  *corrected = *uncorrected = 0;
  int code = small(device, "pending", pending);
  return code ? code : small(device, "failed", failed);
}

int nvmlDeviceGetFieldValues(Device device, int size, FieldValue *values) {
  CHECK(device);
  for (int i = 0; i < size; i++) {
    unsigned action = 0;
    values[i].valueType = 1;
    values[i].nvmlReturn =
        values[i].fieldId == 230 ? (unsigned)small(device, "action", &action) : NOT_SUPPORTED;
    values[i].value.ull = ~0ULL;
    values[i].value.ui = action;
  }
  return SUCCESS;
}
#endif

/* --- use --- */

int nvmlDeviceGetUtilizationRates(Device device, Utilization *out) {
  CHECK(device);
  out->memory = 0;
  return small(device, "gpu", &out->gpu);
}

int nvmlDeviceGetProcessUtilization(Device device, Sample *out, unsigned *size,
                                    unsigned long long since) {
  static char rests[MAX_PROCESSES][64];
  char key[LINE];
  struct timespec now;
  (void)since;
  CHECK(device);
  snprintf(key, sizeof key, "sample %d", device->index);
  unsigned found = all(key, rests), room = *size;
  *size = found;
  if (!found) return NOT_FOUND;
  if (room < found) return INSUFFICIENT_SIZE;
  clock_gettime(CLOCK_REALTIME, &now);
  for (unsigned i = 0; i < found; i++) {
    unsigned long long age = 0;
    memset(&out[i], 0, sizeof out[i]);
    sscanf(rests[i], "%u %u %llu", &out[i].pid, &out[i].smUtil, &age);
    out[i].timeStamp = now.tv_sec * 1000000ULL + now.tv_nsec / 1000 - age;
  }
  return SUCCESS;
}

static int processes(Device device, char kind, unsigned *size, ProcessInfo *out) {
  static char rests[MAX_PROCESSES][64];
  char key[LINE];
  snprintf(key, sizeof key, "process %d %c", device->index, kind);
  unsigned found = all(key, rests), room = *size;
  *size = found;
  if (room < found) return INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < found; i++) {
    long long memory = 0;
    sscanf(rests[i], "%u %lld", &out[i].pid, &memory);
    out[i].usedGpuMemory = (unsigned long long)memory;
    out[i].gpuInstanceId = out[i].computeInstanceId = 0xffffffff;
  }
  return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v2(Device device, unsigned *size, ProcessInfo *out) {
  CHECK_PART(device);
  return processes(device, 'C', size, out);
}

int nvmlDeviceGetGraphicsRunningProcesses_v2(Device device, unsigned *size, ProcessInfo *out) {
  CHECK(device);
  return processes(device, 'G', size, out);
}

#ifndef OLD_DRIVER
int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *size, ProcessInfo *out) {
  CHECK_PART(device);
  return processes(device, 'C', size, out);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(Device device, unsigned *size, ProcessInfo *out) {
  CHECK(device);
  return processes(device, 'G', size, out);
}
#endif

/* --- health --- */

int nvmlDeviceGetRetiredPagesPendingStatus(Device device, unsigned *out) {
  CHECK(device);
  return small(device, "pending", out);
}

int nvmlDeviceGetTotalEccErrors(Device device, unsigned type, unsigned counter,
                                unsigned long long *out) {
  CHECK(device);
  if (type != 1 || counter != 0) return INVALID_ARGUMENT;
  return number(device, "ecc", out);
}

int nvmlDeviceGetSupportedEventTypes(Device device, unsigned long long *out) {
  CHECK(device);
  return number(device, "events", out);
}

int nvmlEventSetCreate(EventSet *out) {
  int code = failure(__func__, NULL);
  if (code) return code;
  *out = calloc(1, sizeof **out);
  sets++;
  memset(registered, 0, sizeof registered);
  return SUCCESS;
}

int nvmlEventSetFree(EventSet set) {
  free(set);
  sets--;
  return failure(__func__, NULL);
}

int nvmlDeviceRegisterEvents(Device device, unsigned long long types, EventSet set) {
  unsigned long long supported = 0;
  CHECK(device);
  number(device, "events", &supported);
  if (types & ~supported) return NOT_SUPPORTED;
  registered[device->index] = types;
  set->registered++;
  return SUCCESS;
}

int nvmlEventSetWait_v2(EventSet set, EventData *out, unsigned milliseconds) {
  struct timespec pause = {0, 5000000};
  if (!set->registered) return INVALID_ARGUMENT;
  for (unsigned waited = 0;; waited += 5) {
    char key[LINE], rest[LINE];
    int code = failure(__func__, NULL), index;
    if (code) return code;
    snprintf(key, sizeof key, "event %d", last_event + 1);
    if (find(key, rest) &&
        sscanf(rest, "%d %llu %llu", &index, &out->eventType, &out->eventData) == 3) {
      out->gpuInstanceId = out->computeInstanceId = 0xffffffff;
      sscanf(rest, "%*d %*u %*u %u", &out->gpuInstanceId);
      last_event++;
      if (index < 0 || (registered[index] & out->eventType)) {
        out->device = index < 0 ? NULL : &cards[index];
        return SUCCESS;
      }
    }
    if (waited >= milliseconds) return TIMEOUT;
    nanosleep(&pause, NULL);
  }
}
