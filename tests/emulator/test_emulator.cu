/* Run the cases. A case with a planted fault must end its process with the right text, any other without a report.
 * Arguments: names of cases; none: all. Prints in cmocka's format. */
#include "tests/emulator/test_emulator.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

cudaStream_t test_stream()
{
	static cudaStream_t stream;
	if (!stream)
		EXPECT(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0) == cudaSuccess);
	return stream;
}

static std::string run_child(const test_case &c, int *status)
{
	int ends[2];
	EXPECT(pipe(ends) == 0);
	pid_t child = fork();
	EXPECT(child >= 0);
	if (child == 0) {
		dup2(ends[1], 2);
		close(ends[0]);
		close(ends[1]);
		if (c.setting)
			putenv((char *)c.setting);
		c.run();
		exit(0);
	}
	close(ends[1]);
	std::string said;
	char part[1024];
	for (ssize_t n; (n = read(ends[0], part, sizeof part)) > 0;)
		said.append(part, (size_t)n);
	close(ends[0]);
	waitpid(child, status, 0);
	return said;
}

static bool passes(const test_case &c)
{
	int status = 0;
	std::string said = run_child(c, &status);
	bool died = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, ended = WIFEXITED(status) && WEXITSTATUS(status) == 0;
	if (c.dies ? died && said.find(c.dies) != std::string::npos : ended && said.empty())
		return true;
	printf("wanted: %s%s; status %#x and:\n%s\n", c.dies ? "a report of " : "silence", c.dies ? c.dies : "", status, said.c_str());
	return false;
}

int main(int argc, char **argv)
{
	int failed = 0, count = 0;
	for (const test_case *c : {planted_cases, meaning_cases, runtime_cases})
		for (; c->name; c++) {
			bool selected = argc == 1;
			for (int i = 1; i < argc; i++)
				selected = selected || strcmp(argv[i], c->name) == 0;
			if (!selected)
				continue;
			count++;
			fflush(stdout);
			bool ok = passes(*c);
			failed += !ok;
			printf("[  %s ] %s\n", ok ? "     OK" : "FAILED ", c->name);
		}
	if (failed)
		printf("%d FAILED TEST(S)\n", failed);
	return failed || count == 0;
}
