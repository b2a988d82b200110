// Pages of jobs as the commands use them: the store bounds each by what it looks at, so a page is put together from several.
import type { Engine } from "../engine.ts";
import type { JobInfo } from "../core/job.ts";
import type { JobFilter, ListPage } from "../core/store.ts";
import { noSuchKind } from "./not-found.ts";

/** A list answers within 300 ms: what it has not looked through by then is left to the next page. */
const LOOK_MS = 200;

/** Up to `limit` jobs. Fewer although `next` is there: it would have taken too long to look through all of them. */
export async function pageOfJobs(
  engine: Engine,
  filter: JobFilter,
  limit: number,
  after: string | null,
): Promise<ListPage> {
  const startedAt = performance.now();
  const jobs: JobInfo[] = [];
  let next = after;
  do {
    const page = await engine.list({ ...filter, limit: limit - jobs.length, ...(next !== null && { after: next }) });
    jobs.push(...page.jobs);
    next = page.next;
  } while (next !== null && jobs.length < limit && performance.now() - startedAt < LOOK_MS);
  return { jobs, next };
}

/** All pages, newest first. Jobs that are enqueued meanwhile are not among them; those that change state meanwhile may be. */
export async function* allPages(engine: Engine, filter: JobFilter, limit = 1_000): AsyncGenerator<readonly JobInfo[]> {
  let next: string | null = null;
  do {
    const page: ListPage = await engine.list({ ...filter, limit, ...(next !== null && { after: next }) });
    yield page.jobs;
    next = page.next;
  } while (next !== null);
}

/** For lists that came out empty: a kind that nobody ever declared is a slip of the fingers. */
export async function assertKindIsThere(engine: Engine, kind: string | undefined): Promise<void> {
  if (kind === undefined) return;
  const kinds = (await engine.counts()).map((counts) => counts.kind);
  if (!kinds.includes(kind)) throw noSuchKind(kind, kinds);
}
