-- The health of an InferenceService for Argo CD.
-- Goes into the ConfigMap argocd-cm under resource.customizations.health.serving.tidemill.dev_InferenceService.
local function health(status, condition)
  local message = condition.message or ""
  if condition.reason ~= nil and condition.reason ~= "" then
    message = condition.reason .. ": " .. message
  end
  return { status = status, message = message }
end

local generation = obj.metadata.generation
if obj.status == nil or obj.status.conditions == nil or obj.status.observedGeneration ~= generation then
  return { status = "Progressing", message = "the operator has not looked at the newest spec yet" }
end

local conditions = {}
for _, condition in ipairs(obj.status.conditions) do
  conditions[condition.type] = condition
end

local function is(kind, status)
  return conditions[kind] ~= nil and conditions[kind].status == status
end

if is("Stalled", "True") then
  return health("Degraded", conditions.Stalled)
end
if is("Suspended", "True") then
  return health("Suspended", conditions.Suspended)
end
if is("Ready", "False") and conditions.Ready.reason == "NoReplicas" then
  return health("Suspended", conditions.Ready)
end
if is("Reconciling", "True") then
  return health("Progressing", conditions.Reconciling)
end
-- Ready by its own path, while an older service has its host or its model's name.
if is("RouteReady", "False") then
  return health("Degraded", conditions.RouteReady)
end
-- Scaled to zero by policy is Ready: the next request wakes it.
if is("Ready", "True") then
  return health("Healthy", conditions.Ready)
end
if conditions.Ready ~= nil then
  return health("Degraded", conditions.Ready)
end
return { status = "Progressing", message = "there is no condition Ready yet" }
