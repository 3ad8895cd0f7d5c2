/* host_memory.h - memory that this process may use. */
#ifndef ENGINE_BASE_HOST_MEMORY_H
#define ENGINE_BASE_HOST_MEMORY_H

/* Return the bytes of the machine's memory, or of the smallest limit of this process's control groups. Any thread. */
double host_memory_bytes(void);

#endif
