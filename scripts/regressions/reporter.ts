// A reporter of node:test that writes one line of JSON for each test that ended, with what is needed to tell a failed assertion from a
// test that could not run. Loaded into the runner of the tree that is tested, which may be an older one: it imports nothing of ours.

export type ReportLine =
  | {
      readonly type: "test";
      readonly file: string;
      readonly title: string;
      readonly nesting: number;
      readonly passed: boolean;
      readonly skipped: boolean;
      readonly error: ReportedError | null;
    }
  /** What a file wrote to stderr: the only place where a failed import is shown. */
  | { readonly type: "stderr"; readonly file: string; readonly text: string };

export interface ReportedError {
  /** Of node:test: "testCodeFailure", "subtestsFailed", "hookFailed", "testTimeoutFailure", ... */
  readonly failure: string;
  readonly name: string;
  readonly code: string;
  readonly message: string;
}

interface TestEvent {
  readonly type: string;
  readonly data: {
    readonly name: string;
    readonly file?: string;
    readonly nesting: number;
    readonly skip?: string | boolean;
    readonly message?: string;
    readonly details?: { readonly error?: { readonly failureType?: string; readonly cause?: unknown } };
  };
}

async function* report(events: AsyncIterable<TestEvent>): AsyncGenerator<string> {
  for await (const event of events) {
    const line = lineOf(event);
    if (line) yield `${JSON.stringify(line)}\n`;
  }
}

function lineOf({ type, data }: TestEvent): ReportLine | null {
  const file = data.file ?? "";
  if (type === "test:stderr") return { type: "stderr", file, text: data.message ?? "" };
  if (type !== "test:pass" && type !== "test:fail") return null;
  const error = data.details?.error;
  return {
    type: "test",
    file,
    title: data.name,
    nesting: data.nesting,
    passed: type === "test:pass",
    skipped: data.skip !== undefined && data.skip !== false,
    error: error ? reportedError(error.failureType ?? "", error.cause) : null,
  };
}

function reportedError(failure: string, cause: unknown): ReportedError {
  const {
    name = "",
    code = "",
    message = String(cause),
  } = (typeof cause === "object" && cause !== null ? cause : {}) as Partial<
    Record<"name" | "code" | "message", unknown>
  >;
  return { failure, name: String(name), code: String(code), message: String(message) };
}

// oxlint-disable-next-line import/no-default-export -- node:test takes a reporter as the default export of a module
export default report;
