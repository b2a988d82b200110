export async function exhaust(): Promise<{ violations: number; story: string[] }> {
  throw new Error("soon");
}
