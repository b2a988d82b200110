// Placeholder
export async function killAtCall(_: readonly string[]): Promise<boolean> { throw new Error("later"); }
