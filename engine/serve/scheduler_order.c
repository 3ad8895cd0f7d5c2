/* scheduler_order.c - the order of generations: by arrival, or by the last decode step, and by priority within an owner.
 *
 * Priority permutes the places of one owner in the queue: a generation swaps places with those of its owner that have a
 * larger number and are in the same phase. So the places of other owners do not change, and with them what they get.
 *
 * A generation is overtaken SCHEDULER_OVERTAKES times at most between two of its decode steps, or before its prompt is
 * read. After that nothing enters ahead of it, and no later prompt of the owner is read before it. So it is the
 * owner's first generation after a bounded number of steps, and the owner's next step includes it. */
#include "engine/serve/scheduler_state.h"

static void insert_after(scheduler *s, generation *g, generation *previous)
{
	g->previous = previous;
	g->following = previous ? previous->following : s->first;
	*(previous ? &previous->following : &s->first) = g;
	*(g->following ? &g->following->previous : &s->last) = g;
}

static void take_out(scheduler *s, generation *g)
{
	*(g->previous ? &g->previous->following : &s->first) = g->following;
	*(g->following ? &g->following->previous : &s->last) = g->previous;
}

/* Swap the places of two generations; a is ahead of b. */
static void swap_places(scheduler *s, generation *a, generation *b)
{
	generation *before_b = b->previous;
	take_out(s, b);
	insert_after(s, b, a->previous);
	if (before_b == a)
		return;
	take_out(s, a);
	insert_after(s, a, before_b);
}

/* Append g, and move it ahead. The walk costs nothing without priorities, since most requests have none. */
static void enter(scheduler *s, generation *g)
{
	insert_after(s, g, s->last);
	g->overtaken = 0;
	for (generation *p = g->previous, *next; p && g->share->prioritized > 0; p = next) {
		next = p->previous;
		if (p->share != g->share || (p->phase == GENERATION_PROMPT) != (g->phase == GENERATION_PROMPT))
			continue;
		if (p->priority <= g->priority || p->overtaken == SCHEDULER_OVERTAKES)
			break;
		p->overtaken++;
		swap_places(s, p, g);
	}
}

void scheduler_queue_enter(scheduler *s, generation *g)
{
	g->share->prioritized += g->priority != 0;
	enter(s, g);
}

void scheduler_queue_leave(scheduler *s, generation *g)
{
	g->share->prioritized -= g->priority != 0;
	take_out(s, g);
}

void scheduler_requeue(scheduler *s, generation *g)
{
	take_out(s, g);
	enter(s, g);
}
