// What every program that the bench starts has in common: it responds to what it is asked over IPC, and it ends when the bench does.

// From the first moment on: a bench that is killed while this program is set up must not leave it behind.
process.on("disconnect", () => process.exit(0));

/** A clock that all processes of one machine share, in ms. */
export function monoMs(): number {
  return Number(process.hrtime.bigint()) / 1e6;
}

export interface Ask {
  readonly id: number;
  readonly name: string;
  readonly data: unknown;
}

export type FromProgram =
  | { readonly type: "answer"; readonly id: number; readonly value: unknown }
  | { readonly type: "failed"; readonly id: number; readonly message: string }
  | { readonly type: "told"; readonly name: string; readonly data: unknown };

export type Answers = Readonly<Record<string, (data: never) => unknown>>;

/** What the bench gave this program on its command line. */
export function given<T>(): T {
  return JSON.parse(process.argv[2] ?? "{}") as T;
}

/** Handles requests by name until the bench goes away. The first answer, to `ready`, says that the program is set up. */
export function serve(answers: Answers): void {
  process.on("message", (ask: Ask) => {
    void answer(answers, ask).then((message) => process.send?.(message));
  });
  tell("ready", null);
}

/** Tells the bench something that it did not ask for. */
export function tell(name: string, data: unknown): void {
  process.send?.({ type: "told", name, data } satisfies FromProgram);
}

async function answer(answers: Answers, ask: Ask): Promise<FromProgram> {
  try {
    const asked = answers[ask.name] as ((data: unknown) => unknown) | undefined;
    if (!asked) throw new Error(`nothing here handles "${ask.name}"`);
    return { type: "answer", id: ask.id, value: await asked(ask.data) };
  } catch (thrown) {
    return { type: "failed", id: ask.id, message: thrown instanceof Error ? (thrown.stack ?? "") : String(thrown) };
  }
}
