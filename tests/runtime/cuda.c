/*
 * cuda [ORDINAL=MIB]... [stay]: a CUDA program, linked with the stand-in for a driver.
 *
 * It prints how many multiprocessors it may use, and CUDA's result of each allocation. With "stay"
 * it runs until a call fails, and prints that result.
 */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
int cuDeviceGetAttribute(int *, int, int), cuMemAlloc_v2(uint64_t *, size_t), cuCtxSynchronize(void);

int main(int words, char **word)
{
	int number, value = 0, ordinal, mib, result = cuInit(0);
	void *context;
	uint64_t address;

	if (!result) result = cuDeviceGetAttribute(&value, 16, 0);
	printf("%d SMs: %d\n", value, result);
	for (number = 1; !result && number < words; number++)
		if (sscanf(word[number], "%d=%d", &ordinal, &mib) == 2) {
			int each = cuDevicePrimaryCtxRetain(&context, ordinal);
			if (!each) each = cuCtxSetCurrent(context);
			if (!each) each = cuMemAlloc_v2(&address, (size_t)mib << 20);
			printf("%s: %d\n", word[number], each);
		}
	fflush(stdout);
	if (words > 1 && !strcmp(word[words - 1], "stay")) {
		while (!result && !(result = cuCtxSynchronize())) usleep(20000);
		printf("stayed: %d\n", result);
	}
	return result;
}
