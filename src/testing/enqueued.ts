// What a program has enqueued, for assertions in its tests: reads the store, and runs nothing.
import { AssertionError } from "node:assert";
import { isDeepStrictEqual } from "node:util";
import type { Client } from "../engine/client.ts";
import type { JobDetails } from "../job/job.ts";

/** Part of an input: of an object the properties that are named, at any depth; anything else must be equal. Or a function of the input. */
export type InputMatch<In> = PartOf<In> | ((input: In) => boolean);

/** Some properties of an input, at any depth. */
type PartOf<In> = In extends readonly unknown[]
  ? In
  : In extends object
    ? { readonly [Key in keyof In]?: PartOf<In[Key]> }
    : In;

/** What both need of a job, a request, or any other kind. */
interface Kind<In> {
  /** The kind's name. */
  readonly name: string;
  /** The schema of its input; null if it has none. */
  readonly schema?: { readonly "~standard": { readonly types?: { readonly input: In } | undefined } } | null;
}

/** The jobs of a kind whose inputs match, in the order in which they were enqueued, whatever became of them. */
export async function enqueued<In>(
  engine: Pick<Client, "list" | "get">,
  job: Kind<In>,
  match?: InputMatch<NoInfer<In>>,
): Promise<readonly JobDetails[]> {
  const found: JobDetails[] = [];
  for (let after: string | undefined; ;) {
    const page = await engine.list({ kind: job.name, limit: 1_000, ...(after !== undefined && { after }) });
    for (const { id } of page.jobs) {
      const details = await engine.get(id);
      if (details && (match === undefined || matches(details.input, match))) found.push(details);
    }
    if (page.next === null) return found.toReversed();
    after = page.next;
  }
}

/** Throws unless exactly `times` jobs of the kind match; omitted: at least one. Returns those that do. */
export async function assertEnqueued<In>(
  engine: Pick<Client, "list" | "get">,
  job: Kind<In>,
  match?: InputMatch<NoInfer<In>>,
  options: {
    /** Exactly this many. Default: at least one. */
    readonly times?: number;
  } = {},
): Promise<readonly JobDetails[]> {
  const all = await enqueued(engine, job);
  const found = match === undefined ? all : all.filter(({ input }) => matches(input, match));
  const { times } = options;
  if (times === undefined ? found.length > 0 : found.length === times) return found;
  const wanted =
    match === undefined
      ? ""
      : typeof match === "function"
        ? " for which the function is true"
        : ` with ${JSON.stringify(match)}`;
  const shown = all.slice(0, 5).map(({ id, input }) => `  ${id} ${JSON.stringify(input)?.slice(0, 200)}`);
  const others =
    all.length === 0 ? `No ${job.name} job was enqueued.` : `Enqueued were ${all.length}:\n${shown.join("\n")}`;
  throw new AssertionError({
    message: `${found.length} ${job.name} jobs${wanted} were enqueued, and ${times === undefined ? "at least one" : times} should be. ${others}`,
    actual: found.length,
    expected: times ?? 1,
    operator: "assertEnqueued",
    stackStartFn: assertEnqueued,
  });
}

function matches(input: unknown, match: unknown): boolean {
  if (typeof match === "function") return (match as (input: unknown) => boolean)(input);
  if (typeof match !== "object" || match === null || Array.isArray(match)) return isDeepStrictEqual(input, match);
  if (typeof input !== "object" || input === null) return false;
  return Object.entries(match).every(([name, part]) => matches((input as Record<string, unknown>)[name], part));
}
