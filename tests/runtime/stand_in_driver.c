/*
 * A driver of cards that are not there: the CUDA driver API and NVML in one library, as far as the
 * libraries that limit containers, and bench/gpu, ask for them. It checks what it is given.
 *
 * STAND_IN_CARDS has the MiB of each card, by PCI address: "4096 8192". As a driver does, NVML
 * numbers them so, and CUDA the fastest (here: the largest) first, unless CUDA_DEVICE_ORDER is
 * PCI_BUS_ID. STAND_IN_STATE names the file in which all processes account for what they hold.
 *
 * As NVIDIA documents MPS, cuInit connects to the control daemon whose socket is in
 * CUDA_MPS_PIPE_DIRECTORY, if there is one. The process is its client then, may use
 * CUDA_MPS_ACTIVE_THREAD_PERCENTAGE of the multiprocessors, and hold no more memory of a card than
 * CUDA_MPS_PINNED_DEVICE_MEM_LIMIT and the daemon allow, contexts included. What client and daemon
 * say to each other is made up (tests/mps/stand_in.py).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { CARDS = 16, PROCESSES = 64, INVALID = 1, NO_MEMORY = 2, NO_DEVICE = 101, NO_CONTEXT = 201 };
enum { DAEMON_ENDED = 806, DAEMON_NOT_READY = 807 };
static const uint64_t MIB = 1 << 20, CONTEXT = 64 << 20, ADDRESS = 0x7f0000000000;

typedef struct { int index; uint64_t size, limit; } Card;
typedef struct { int pid; uint64_t used[CARDS], busy[CARDS]; } Process; /* bytes and ns */

static Card cards[CARDS], *by_cuda[CARDS], *current;
static int count, contexts[CARDS], daemon_socket = -1;
static double percent = 100;
static Process *processes;

__attribute__((constructor)) static void begin(void)
{
	const char *order = getenv("CUDA_DEVICE_ORDER"), *state = getenv("STAND_IN_STATE");
	char *text = getenv("STAND_IN_CARDS");
	int by_bus = order && !strcmp(order, "PCI_BUS_ID");
	int file = state ? open(state, O_RDWR | O_CREAT, 0666) : -1, at;

	for (text = text ? text : "3072"; *text && count < CARDS; count++) {
		cards[count] = (Card){count, strtoull(text, &text, 10) * MIB, UINT64_MAX};
		for (at = count; at && !by_bus && by_cuda[at - 1]->size < cards[count].size; at--)
			by_cuda[at] = by_cuda[at - 1];
		by_cuda[at] = &cards[count];
	}
	if (file >= 0 && ftruncate(file, PROCESSES * sizeof(Process))) abort();
	processes = mmap(NULL, PROCESSES * sizeof(Process), PROT_READ | PROT_WRITE,
			 MAP_SHARED | (file < 0 ? MAP_ANONYMOUS : 0), file, 0);
	if (processes == MAP_FAILED) abort();
}

static Process *self(void)
{
	Process *each = processes;
	for (; each->pid != getpid(); each++)
		if (!each->pid && __sync_bool_compare_and_swap(&each->pid, 0, getpid())) break;
	return each;
}

static uint64_t *held(Card *card) { return &self()->used[card->index]; }

__attribute__((destructor)) static void end(void)
{
	for (int i = 0; i < count; i++) *held(&cards[i]) = 0;
}

static uint64_t left(Card *card)
{
	uint64_t size = card->size;
	for (int i = 0; i < PROCESSES; i++) size -= processes[i].used[card->index];
	return size;
}

static int take(Card *card, uint64_t size)
{
	if (size > left(card) || *held(card) + size > card->limit) return NO_MEMORY;
	*held(card) += size;
	return 0;
}

/* --- MPS ------------------------------------------------------------------------------------ */

static int connect_to_daemon(void)
{
	const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
	const char *cores = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
	const char *memory = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char text[1024] = "", *next;

	snprintf(address.sun_path, sizeof address.sun_path, "%s/control",
		 folder ? folder : "/tmp/nvidia-mps");
	daemon_socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (connect(daemon_socket, (struct sockaddr *)&address, sizeof address)) {
		close(daemon_socket);
		daemon_socket = -1;
		return 0; /* no daemon: the program runs without limits */
	}
	dprintf(daemon_socket, "client %s %s\n", cores ? cores : "100", memory ? memory : "");
	if (read(daemon_socket, text, sizeof text - 1) <= 0) return DAEMON_ENDED;
	percent = strtod(text, &next);
	if (next == text) return DAEMON_NOT_READY;
	for (int i = 0; i < count; i++) by_cuda[i]->limit = strtoull(next, &next, 10) * MIB;
	return 0;
}

static int daemon_ended(void)
{
	char byte;
	return daemon_socket >= 0 &&
	       (recv(daemon_socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || errno != EAGAIN);
}

/* --- CUDA ----------------------------------------------------------------------------------- */

int cuInit(unsigned flags)
{
	return flags ? INVALID : daemon_socket < 0 ? connect_to_daemon() : 0;
}
int cuDriverGetVersion(int *version) { *version = 12020; return 0; }
int cuGetErrorString(int code, const char **text) { *text = code ? "an error" : "none"; return 0; }
int cuDeviceGetCount(int *found) { *found = count; return 0; }
int cuDeviceGet(int *device, int ordinal)
{
	*device = ordinal;
	return ordinal < count ? 0 : NO_DEVICE;
}
int cuDeviceTotalMem_v2(size_t *size, int device)
{
	*size = by_cuda[device]->size;
	return 0;
}
int cuDeviceGetPCIBusId(char *text, int size, int device)
{
	return snprintf(text, size, "0000:%02x:00.0", by_cuda[device]->index + 1) < size ? 0 : INVALID;
}
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	/* multiprocessors, threads of each, compute capability 9.0 */
	*value = attribute == 16 ? 108 * percent / 100 : attribute == 39 ? 2048 : attribute == 75 ? 9 : 0;
	return device < count && (*value || attribute == 76) ? 0 : INVALID;
}
int cuDevicePrimaryCtxRetain(void **context, int device)
{
	if (device >= count) return NO_DEVICE;
	int result = contexts[device] ? 0 : take(by_cuda[device], CONTEXT);
	*context = by_cuda[device];
	contexts[device] += !result;
	return result;
}
int cuDevicePrimaryCtxRelease_v2(int device)
{
	if (!contexts[device]) return NO_CONTEXT;
	if (!--contexts[device]) *held(by_cuda[device]) -= CONTEXT;
	return 0;
}
int cuCtxSetCurrent(void *context)
{
	current = context;
	return current >= cards && current < cards + count ? 0 : NO_CONTEXT;
}
int cuCtxGetCurrent(void **context)
{
	*context = current;
	return 0;
}
int cuCtxGetDevice(int *device)
{
	for (*device = 0; *device < count; ++*device)
		if (by_cuda[*device] == current) return 0;
	return NO_CONTEXT;
}
int cuCtxSynchronize(void) { return daemon_ended() ? DAEMON_ENDED : current ? 0 : NO_CONTEXT; }
int cuMemGetInfo_v2(size_t *free, size_t *total)
{
	if (!current) return NO_CONTEXT;
	*free = left(current);
	*total = current->size;
	return 0;
}
int cuMemAlloc_v2(uint64_t *address, size_t size)
{
	if (cuCtxSynchronize()) return cuCtxSynchronize();
	*address = ADDRESS;
	return take(current, size);
}
int cuMemsetD8_v2(uint64_t address, unsigned char value, size_t size)
{
	return address == ADDRESS && value == 0 && size ? 0 : INVALID;
}
int cuModuleLoadData(void **module, const void *image)
{
	*module = by_cuda;
	return strstr(image, ".target sm_75") && strstr(image, ".entry spin(") ? 0 : 218;
}
int cuModuleGetFunction(void **function, void *module, const char *name)
{
	*function = cards;
	return module == by_cuda && !strcmp(name, "spin") ? 0 : 500;
}
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
		   unsigned bz, unsigned shared, void *stream, void **parameters, void **extra)
{
	uint64_t ns = *(uint64_t *)parameters[0];
	struct timespec length = {ns / 1000000000, ns % 1000000000};
	if (function != cards || !gx || gy * gz * bx * by * bz != 1 || shared || stream || extra)
		return INVALID;
	if (!current) return NO_CONTEXT;
	self()->busy[current->index] += ns;
	return nanosleep(&length, 0);
}

/* --- NVML ----------------------------------------------------------------------------------- */

int nvmlInit(void) { return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { return flags ? INVALID : 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code ? "an error" : "none"; }
int nvmlDeviceGetCount_v2(unsigned *found) { *found = count; return 0; }
int nvmlDeviceGetCount(unsigned *found) { return nvmlDeviceGetCount_v2(found); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Card **card)
{
	*card = &cards[index];
	return index < (unsigned)count ? 0 : INVALID;
}
int nvmlDeviceGetHandleByIndex(unsigned index, Card **card)
{
	return nvmlDeviceGetHandleByIndex_v2(index, card);
}
int nvmlDeviceGetIndex(Card *card, unsigned *index) { *index = card->index; return 0; }
int nvmlDeviceGetUUID(Card *card, char *text, unsigned size)
{
	return snprintf(text, size, "GPU-%d", card->index) < (int)size ? 0 : INVALID;
}
int nvmlDeviceGetPciInfo(Card *card, char *info) /* begins with the address, in the old form */
{
	return snprintf(info, 16, "0000:%02X:00.0", card->index + 1) == 12 ? 0 : INVALID;
}
int nvmlDeviceGetMemoryInfo(Card *card, uint64_t *memory)
{
	memory[0] = card->size;
	memory[1] = left(card);
	memory[2] = memory[0] - memory[1];
	return 0;
}
int nvmlDeviceGetComputeRunningProcesses(Card *card, unsigned *found, void *processes_of_card)
{
	struct { unsigned pid; uint64_t used; } *next = processes_of_card;
	*found = 0;
	for (int i = 0; i < PROCESSES; i++)
		if (processes[i].used[card->index]) {
			next->pid = processes[i].pid;
			next++->used = processes[i].used[card->index];
			++*found;
		}
	return 0;
}
int nvmlDeviceGetProcessUtilization(Card *card, void *samples, unsigned *found, uint64_t since)
{
	struct { unsigned pid; uint64_t at; unsigned sm, memory, encoder, decoder; } *next = samples;
	static uint64_t before[PROCESSES], looked; /* of the one card that is asked for */
	struct timespec time;
	clock_gettime(CLOCK_REALTIME, &time);
	uint64_t now = time.tv_sec * 1000000ul + time.tv_nsec / 1000;

	*found = 0;
	for (int i = 0; i < PROCESSES; i++) {
		uint64_t busy = processes[i].busy[card->index], percent = 0;
		if (!since || !processes[i].used[card->index]) continue;
		if (looked && now > looked) percent = (busy - before[i]) / 10 / (now - looked);
		memset(next, 0, sizeof *next);
		next->pid = processes[i].pid;
		next->at = now;
		next++->sm = percent > 100 ? 100 : percent;
		before[i] = busy;
		++*found;
	}
	looked = now;
	return 0;
}
