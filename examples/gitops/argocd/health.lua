-- Health of a PromptPrefix for Argo CD.
--
-- Progressing: the operator has not seen the newest spec yet, or is working on it.
-- Degraded:    nothing will change until somebody edits the resource or its text.
-- Healthy:     the state wanted now is reached. A suspended prefix that is released everywhere is what
--              its spec asks for, so it is Healthy too: Argo CD's Suspended would keep every sync with
--              waves or hooks running for ever.
local status = obj.status or {}

local function condition(kind)
  for _, each in ipairs(status.conditions or {}) do
    if each.type == kind then
      return each
    end
  end
  return {}
end

local function health(word, message)
  return { status = word, message = message or "" }
end

if status.observedGeneration ~= obj.metadata.generation then
  return health("Progressing", "Waits for the operator to see this version of the spec.")
end
local reconciling, ready = condition("Reconciling"), condition("Ready")
if reconciling.status == "True" then
  return health("Progressing", reconciling.message)
end
if ready.status == "True" then
  return health("Healthy", ready.message)
end
if ready.status == "False" then
  return health("Degraded", ready.message)
end
return health("Progressing", "Waits for the operator.")
