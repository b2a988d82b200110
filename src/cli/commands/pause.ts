// `outlive pause KIND` and `outlive resume KIND`.
import { ErrorCode, OutliveError } from "../../core/errors.ts";
import type { Context } from "../context.ts";
import type { Register } from "../main.ts";
import { noSuchKind } from "../not-found.ts";
import { shellWord } from "../words.ts";

export const register: Register = (program, run) => {
  program
    .command("pause")
    .argument("<kind>", "the kind")
    .description("nobody claims jobs of this kind until it is resumed; what runs goes on")
    .action(run((context, { args }) => setPaused(context, args[0]!, true)));
  program
    .command("resume")
    .argument("<kind>", "the kind")
    .description("jobs of this kind are claimed again")
    .action(run((context, { args }) => setPaused(context, args[0]!, false)));
};

async function setPaused({ terminal, attach }: Context, kind: string, paused: boolean): Promise<void> {
  const engine = await attach();
  try {
    await (paused ? engine.pause(kind) : engine.resume(kind));
  } catch (thrown) {
    if (!(thrown instanceof OutliveError) || thrown.code !== ErrorCode.notFound) throw thrown;
    const kinds = (await engine.counts()).map((counts) => counts.kind);
    throw noSuchKind(kind, kinds);
  }
  terminal.answer({ kind, paused }, () =>
    paused
      ? `${kind} is paused: nobody claims it; what runs goes on. Later: outlive resume ${shellWord(kind)}`
      : `${kind} is claimed again.`,
  );
}
